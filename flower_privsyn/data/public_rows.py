"""Public text as rows of tokens on the disk: read once, in chunks, whatever its size."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.data import data_sets
from flower_privsyn.data.chunking import Chunking, token_ids
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.data.sentences import sentences_inside
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import default_cache_directory, own_folder

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows of token ids, one after another in one array, as Arrow holds them.

    Attributes:
        tokens: (t,) of all rows.
        lengths: (n,) how many of them each row has.
    """

    tokens: IntArray
    lengths: IntArray

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | IntArray]) -> Self:
        """Rows that are there one by one."""
        found = [np.asarray(row, dtype=np.int64) for row in rows]
        lengths = np.fromiter(map(len, found), dtype=np.int64, count=len(found))
        return cls(np.concatenate([np.zeros(0, dtype=np.int64), *found]), lengths)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def starts(self) -> IntArray:
        """(n,) where each row begins."""
        begins: IntArray = np.cumsum(self.lengths) - self.lengths
        return begins


class PublicRows:
    """Public documents, cut into rows as users' text is, with the tokens and the text of each.

    A data set of the `datasets` library, mapped from the disk, so that memory is that of a chunk.

    Attributes:
        folder: where it is.
        vocabulary: tokens of the tokenizer, those that were added included.
        lengths: (n,) how many tokens each row has.

    Args:
        folder: where it is.
        vocabulary: tokens of the tokenizer.
        rows: `tokens`, `text` and the number of the document of each row.
    """

    def __init__(self, folder: Path, vocabulary: int, rows: Any) -> None:
        import pyarrow.compute as pc

        self.folder = folder
        self.vocabulary = vocabulary
        self._tokens, self._text = rows.data.column("tokens"), rows.data.column("text")
        self._document: IntArray = rows.data.column("document").to_numpy()
        self.lengths: IntArray = pc.list_value_length(self._tokens).to_numpy().astype(np.int64)

    @classmethod
    def of(
        cls,
        source: str,
        *,
        tokenizer: Any,
        max_tokens: int,
        cache: Path | None = None,
    ) -> Self:
        """Cut and store a corpus, or open it where that was done before.

        Args:
            source: "bundled" for the passages of the package, a file of JSON lines (also .gz) with
                a `text` in every line, or another name of `flower_privsyn.data.public_corpus`.
            tokenizer: a ``tokenizers.Tokenizer``, whose tokens the rows are of.
            max_tokens: most tokens of a row, >= 1.
            cache: folder in which corpora are kept, each under what it was made of; None for
                `PRIVSYN_CACHE`.

        Raises:
            DataError: The file is missing, a line is not as described, or there is no text.
            MissingExtraError: The library is not installed.
        """
        corpus = PublicCorpus.find(source, setting="public-text")
        cache = default_cache_directory() if cache is None else cache
        try:
            made_of = json.dumps([corpus.identity(), max_tokens])
            digest = hashlib.blake2b(made_of.encode(), digest_size=16)
            digest.update(tokenizer.to_str().encode("utf-8", "surrogatepass"))
            folder = cache / "public-rows" / digest.hexdigest()
            for place in (cache, folder.parent, folder):
                own_folder(place)
            rows = data_sets.rows_of_tokens(
                lambda: _rows(corpus, tokenizer=tokenizer, max_tokens=max_tokens),
                folder=folder,
                fingerprint=digest.hexdigest(),
            )
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise DataError(
                f'public-text = "{source}": {error.filename or cache} cannot be read or written '
                f"({reason})"
            ) from error
        return cls(folder, int(tokenizer.get_vocab_size()), rows)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths)

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
            raise ConfigError(
                f'public-text = "{source}" has no row of least-row-tokens = {least} tokens'
            )
        return found

    def __getitem__(self, index: int) -> IntArray:
        """The tokens of a row."""
        return np.asarray(self._tokens[index].values, dtype=np.int64)

    def text_of(self, index: int) -> str:
        """The text of a row."""
        return str(self._text[index].as_py())

    def sentences_of(self, index: int) -> str:
        """The whole sentences of a row; empty where it holds none."""
        follows = index and self._document[index - 1] == self._document[index]
        before = self.text_of(index - 1) if follows else ""
        return sentences_inside(self.text_of(index), before=before)

    def chunks(self, size: int = 2**14) -> Iterator[TokenRows]:
        """The tokens of all rows, `size` rows at a time."""
        for first in range(0, len(self), size):
            tokens = self._tokens.slice(first, size).combine_chunks().flatten().to_numpy()
            yield TokenRows(tokens.astype(np.int64), self.lengths[first : first + size])

    def documents(self, *, most_tokens: int) -> Iterator[IntArray]:
        """The tokens of documents: all of them, or every so manieth of a larger corpus.

        A corpus may be in the order of its sources, so its beginning does not stand for it.

        Args:
            most_tokens: about how many tokens to go through.
        """
        starts = np.flatnonzero(np.diff(self._document, prepend=-1))
        stops = np.append(starts[1:], len(self))
        every = max(1, math.ceil(int(self.lengths.sum()) / most_tokens))
        for start, stop in zip(starts[::every].tolist(), stops[::every].tolist(), strict=True):
            yield np.concatenate([self[index] for index in range(start, stop)])


def _rows(corpus: PublicCorpus, *, tokenizer: Any, max_tokens: int) -> Iterator[dict[str, Any]]:
    """The rows of a corpus, one after another; of none the library makes no data set."""
    empty, chunking = True, Chunking(max_tokens=max_tokens)
    for number, texts in enumerate(corpus.pieces(chunking, tokenizer=tokenizer)):
        for text, tokens in zip(texts, token_ids(tokenizer, texts), strict=True):
            empty = False
            # A piece of a document may have more tokens than it had inside it.
            yield {"tokens": tokens[:max_tokens], "text": text, "document": number}
    if empty:
        raise DataError(f'public-text = "{corpus.source}" has no row of max-tokens = {max_tokens}')
