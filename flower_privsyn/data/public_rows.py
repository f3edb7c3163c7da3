"""Public text as rows of tokens on the disk: read once, in chunks, whatever its size."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.data.cut import Cut, token_ids
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.data.sentences import sentences_inside
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import default_cache_directory, own_folder

IntArray = npt.NDArray[np.int64]

#: Documents that are cut and stored together.
_DOCUMENTS: Final = 1024

#: Corpora that are kept.
_MOST_KEPT: Final = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicRows:
    """Public documents, cut into rows as users' text is, with the tokens and the text of each.

    On the disk: `tokens.bin`, `text.bin` (UTF-8), and `rows.npy`, which says where in them each
    row ends and of which document it is. Files are mapped, so that memory is that of a chunk.

    Attributes:
        folder: where they are.
        vocabulary: tokens of the tokenizer, those that were added included.
        ends: (n, 3) of each row: where its tokens end, where its text ends, its document.
        tokens: (t,) of all rows, one after another.
        text: (b,) bytes of all rows, one after another.
    """

    folder: Path
    vocabulary: int
    ends: IntArray
    tokens: npt.NDArray[Any]
    text: npt.NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        source: str,
        *,
        tokenizer: Any,
        max_tokens: int,
        setting: str,
        cache: Path | None = None,
    ) -> Self:
        """Cut and store a corpus, or open it where that was done before.

        Args:
            source: "bundled" for the passages of the package, a file of JSON lines (also .gz) with
                a `text` in every line, or another name of `flower_privsyn.data.public_corpus`.
            tokenizer: a ``tokenizers.Tokenizer``, whose tokens the rows are of.
            max_tokens: most tokens of a row, >= 1.
            setting: what named the file, for the sentence that says it cannot be read.
            cache: folder in which the corpora that were used last are kept, each under what it was
                made of; None for `PRIVSYN_CACHE`.

        Raises:
            DataError: The file is missing, a line is not as described, or there is no text.
        """
        corpus = PublicCorpus.find(source, setting=setting)
        cache = default_cache_directory() if cache is None else cache
        kept = cache / "public-rows"
        made_of = [*corpus.identity(), max_tokens]
        digest = hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16)
        digest.update(tokenizer.to_str().encode("utf-8", "surrogatepass"))
        folder = kept / digest.hexdigest()
        try:
            for place in (cache, kept):
                own_folder(place)
            if not (folder / "rows.npy").exists():
                _make(corpus, folder, tokenizer=tokenizer, cut=Cut(max_tokens=max_tokens))
            os.utime(folder)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise DataError(
                f'{setting} = "{source}": {kept} cannot be written ({reason})'
            ) from error
        vocabulary = int(tokenizer.get_vocab_size())
        ends = np.load(folder / "rows.npy")
        if not len(ends):
            where = corpus.path or corpus.source
            raise DataError(f'{setting} = "{source}": {where} holds no text')
        return cls(
            folder=folder,
            vocabulary=vocabulary,
            ends=ends,
            tokens=np.memmap(folder / "tokens.bin", dtype=_token_type(vocabulary), mode="r"),
            text=np.memmap(folder / "text.bin", dtype=np.uint8, mode="r"),
        )

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.ends)

    @property
    def lengths(self) -> IntArray:
        """(n,) how many tokens each row has."""
        return np.diff(self.ends[:, 0], prepend=0).astype(np.int64, copy=False)

    def long_enough(self, least: int, *, source: str) -> IntArray:
        """(m,) how many tokens those rows have that may be chosen, m >= 1.

        Args:
            least: `least-row-tokens` of the settings.
            source: their `public-text`, for the sentence.

        Raises:
            ConfigError: there is none.
        """
        found = self.lengths[self.lengths >= least]
        if not len(found):
            raise none_long_enough(source, least)
        return found

    def row(self, index: int) -> IntArray:
        """The tokens of a row."""
        start = self.ends[index - 1, 0] if index else 0
        return np.asarray(self.tokens[start : self.ends[index, 0]], dtype=np.int64)

    def __getitem__(self, index: int) -> IntArray:
        """The tokens of a row."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.row(index)

    def text_of(self, index: int) -> str:
        """The text of a row."""
        start = self.ends[index - 1, 1] if index else 0
        return bytes(self.text[start : self.ends[index, 1]]).decode("utf-8", "surrogatepass")

    def sentences_of(self, index: int) -> str:
        """The whole sentences of a row; empty where it holds none."""
        follows = index and self.ends[index - 1, 2] == self.ends[index, 2]
        before = self.text_of(index - 1) if follows else ""
        return sentences_inside(self.text_of(index), before=before)

    def drawn(self, count: int, random: np.random.Generator) -> list[str]:
        """The texts of rows that nobody chose, none twice; of all of them where there are fewer.

        Args:
            count: how many, >= 0.
            random: draws them.
        """
        places = random.choice(len(self), min(count, len(self)), replace=False)
        return [self.text_of(int(place)) for place in places]

    def chunks(self, size: int = 2**14) -> Iterator[list[IntArray]]:
        """The tokens of all rows, `size` rows at a time."""
        for first in range(0, len(self), size):
            yield [self.row(index) for index in range(first, min(first + size, len(self)))]

    def documents(self, *, most_tokens: int) -> Iterator[IntArray]:
        """The tokens of documents: all of them, or every so manieth of a larger corpus.

        A corpus may be in the order of its sources, so its beginning does not stand for it.

        Args:
            most_tokens: about how many tokens to go through.
        """
        lasts = np.append(np.flatnonzero(np.diff(self.ends[:, 2])), len(self) - 1)
        ends = self.ends[lasts, 0]
        starts = np.concatenate((np.zeros(1, dtype=ends.dtype), ends[:-1]))
        every = max(1, math.ceil(int(ends[-1]) / most_tokens))
        for start, end in zip(starts[::every].tolist(), ends[::every].tolist(), strict=True):
            yield np.asarray(self.tokens[start:end], dtype=np.int64)


def _token_type(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if vocabulary <= 2**16 else np.uint32


def _make(corpus: PublicCorpus, folder: Path, *, tokenizer: Any, cut: Cut) -> None:
    """Store a corpus whole or not at all, and forget the one that was not used for longest."""
    kept = folder.parent
    made = Path(tempfile.mkdtemp(dir=kept, prefix="new-"))
    try:
        _store(corpus, made, tokenizer=tokenizer, cut=cut)
        for file in made.iterdir():
            file.chmod(0o600)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    others = [entry for entry in kept.iterdir() if not entry.name.startswith("new-")]
    for old in sorted(others, key=lambda entry: entry.stat().st_mtime_ns)[:-_MOST_KEPT]:
        # Files that another process has mapped stay its own until it lets go of them.
        shutil.rmtree(old, ignore_errors=True)


def _store(corpus: PublicCorpus, folder: Path, *, tokenizer: Any, cut: Cut) -> None:
    """Write the files of a corpus."""
    dtype = _token_type(int(tokenizer.get_vocab_size()))
    ends: list[IntArray] = []
    place = np.zeros(2, dtype=np.int64)
    first = 0
    with (folder / "tokens.bin").open("wb") as tokens, (folder / "text.bin").open("wb") as text:
        waiting = corpus.documents()
        while documents := list(itertools.islice(waiting, _DOCUMENTS)):
            pieces, texts, rows = _cut(documents, tokenizer=tokenizer, cut=cut)
            owners = np.repeat(np.arange(len(pieces)), pieces) + first
            first += len(pieces)
            encoded = [piece.encode("utf-8", "surrogatepass") for piece in texts]
            tokens.write(b"".join(np.array(row, dtype=dtype).tobytes() for row in rows))
            text.write(b"".join(encoded))
            sizes = np.array(
                [[len(row), len(piece)] for row, piece in zip(rows, encoded, strict=True)],
                dtype=np.int64,
            ).reshape(-1, 2)
            found = place + np.cumsum(sizes, axis=0)
            ends.append(np.column_stack((found, owners)))
            place = found[-1] if len(found) else place
    np.save(folder / "rows.npy", np.concatenate([np.zeros((0, 3), dtype=np.int64), *ends]))


def _cut(
    documents: Sequence[str], *, tokenizer: Any, cut: Cut
) -> tuple[list[int], list[str], list[list[int]]]:
    """How many rows each document has, and of every row the text and the tokens."""
    pieces = cut.pieces(documents, tokenizer=tokenizer)
    texts = [piece for found in pieces for piece in found]
    # A piece of a document may have more tokens than it had inside it.
    rows = [list(row[: cut.max_tokens]) for row in token_ids(tokenizer, texts)]
    return [len(found) for found in pieces], texts, rows


def none_long_enough(source: str, least: int) -> ConfigError:
    """The refusal of public text of which no row may be chosen.

    Args:
        source: `public-text` of the settings.
        least: their `least-row-tokens`.
    """
    return ConfigError(f'public-text = "{source}" has no row of least-row-tokens = {least} tokens')


def count_long_rows(
    corpus: PublicCorpus, *, tokenizer: Any, max_tokens: int, least: int, enough: int
) -> int:
    """How many rows of a corpus have so many tokens; nothing is stored.

    Args:
        corpus: the public text.
        tokenizer: whose tokens rows are cut by.
        max_tokens: of a row, at most.
        least: tokens of a row that counts.
        enough: rows that count, from which on no more are read.
    """
    found, waiting, cut = 0, corpus.documents(), Cut(max_tokens=max_tokens)
    while found < enough and (documents := list(itertools.islice(waiting, _DOCUMENTS))):
        _, _, rows = _cut(documents, tokenizer=tokenizer, cut=cut)
        found += sum(len(row) >= least for row in rows)
    return found
