"""Public documents by name: bundled, in files, or in a data set, and read as they come.

What a name may be:

- ``bundled``: the passages that ship with the package; ``bundled+abstracts``: and 200 abstracts;
- ``texts.jsonl``: a JSON object with a `text` in every line; also ``.jsonl.gz`` and ``.json.gz``;
- ``texts.parquet``: with a column `text`;
- ``letter.txt``: one document;
- ``folder``: any of these in it, also in folders below it; or what `save_to_disk` wrote;
- ``allenai/c4:realnewslike``: a data set of the hub, ``owner/name:config:split``, streamed;
- ``allenai/c4:en:train[:100000]``: of any of these the first so many documents.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from flower_privsyn.data import data_sets, read
from flower_privsyn.data.chunking import Chunking
from flower_privsyn.data.columns import is_unicode
from flower_privsyn.data.sentences import is_whole
from flower_privsyn.errors import ConfigError, DataError, PrivsynError
from flower_privsyn.files import user_path

#: What ships with the package: passages, and for the quickstart 200 abstracts beside them.
_PASSAGES: Final = Path(__file__).parent / "passages"
BUNDLED: Final = {
    "bundled": _PASSAGES / "passages.jsonl.gz",
    "bundled+abstracts": _PASSAGES,
}

#: Files of a folder that hold public text. The shards of C4 are JSON lines in .json.gz.
_LINES: Final = (".jsonl", ".jsonl.gz", ".json.gz")
_NAMES: Final = (*_LINES, ".parquet", ".txt")

#: Documents that are cut at a time.
_DOCUMENTS: Final = 512

MOST_PUBLIC_CHARACTERS: Final = 2**24
"""Characters of the documents of which public texts are made: a quarter of a minute to cut."""

#: Of so few documents none is left out: they may be long, such as a file of one's whole text.
_FEW_DOCUMENTS: Final = 512

_FIRST: Final = re.compile(r"(.+)\[:([1-9]\d*)\]")


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicCorpus:
    """Where public documents are.

    Attributes:
        source: as it was named, without the number of documents.
        setting: what named it, for sentences.
        path: the file or the folder; None for a data set of the hub.
        most: documents that are read at most; None for all.
    """

    source: str
    setting: str
    path: Path | None
    most: int | None = None

    @classmethod
    def find(cls, source: str | Path, *, setting: str) -> Self:
        """Find out what a name means, without reading it.

        Raises:
            DataError: The name is empty, which would be the folder that the command was typed in.
        """
        name, most = str(source), None
        if not name.strip():
            raise DataError(f'{setting} is empty: name a file of public text, or "bundled"')
        if not os.path.lexists(user_path(name)) and (first := _FIRST.fullmatch(name)):
            name, most = first[1], int(first[2])
        path = BUNDLED.get(name) or user_path(name)
        of_hub = not os.path.lexists(path) and data_sets.is_named(name)
        return cls(source=name, setting=setting, path=None if of_hub else path, most=most)

    def places(self) -> list[Path]:
        """What is read of this machine: the file; the folder and the files below it."""
        if self.path is None:
            return []
        return [self.path, *(read.files_below(self.path) if self.path.is_dir() else ())]

    def identity(self) -> list[Any]:
        """What its documents depend on, as JSON can hold it.

        Of files their names, bytes and times of change; of a data set of the hub its name: what was
        read of it once stands for it.

        Raises:
            OSError: A file cannot be looked at.
        """
        stats = [(str(path.absolute()), path.stat()) for path in self.places()]
        files = [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]
        return [files or self.source, self.most]

    def documents(self) -> Iterator[str]:
        """The documents in the order of files and lines, those without text included.

        Raises:
            DataError: A file or the hub cannot be read, or a line or row has no text.
            MissingExtraError: It is a data set, and the library is not installed.
        """
        try:
            for where, row in itertools.islice(self._rows(), self.most):
                yield _document(where, row)
        except PrivsynError as error:
            raise type(error)(f'{self.setting} = "{self.source}": {error}') from error
        except Exception as error:  # whatever a library of files or of the network raises
            place = getattr(error, "filename", None) or self.path or self.source
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise DataError(
                f'{self.setting} = "{self.source}": {place} cannot be read ({reason})'
            ) from error

    def pieces(self, chunking: Chunking, *, tokenizer: Any) -> Iterator[list[str]]:
        """The pieces of each document, as `Chunking.pieces` cuts it.

        Raises:
            DataError: As `documents`.
            MissingExtraError: As `documents`.
        """
        documents = self.documents()
        while part := list(itertools.islice(documents, _DOCUMENTS)):
            yield from chunking.pieces(part, tokenizer=tokenizer)

    def _rows(self) -> Iterator[tuple[str, object]]:
        """What stands in each place, and where that is."""
        if self.path is None:
            yield from _numbered(data_sets.from_hub(self.source, streaming=True))
            return
        if self.path.is_dir() and data_sets.is_saved(self.path):
            yield from _numbered(data_sets.saved(self.path))
            return
        files = [self.path]
        if self.path.is_dir():
            files = [one for one in self.places()[1:] if one.name.lower().endswith(_NAMES)]
        if not files:
            raise DataError(f"{self.path} holds no text ({', '.join(_NAMES)})")
        for file in files:
            if file.suffix.lower() == ".txt":
                yield str(file), {"text": read.text_of(file)}
            elif file.suffix.lower() == ".parquet":
                import pyarrow.parquet as pq

                batches = pq.ParquetFile(file).iter_batches()
                rows = (row for batch in batches for row in batch.to_pylist())
                yield from _numbered(rows, f"{file} row")
            else:
                yield from read.json_values(file)


def _numbered(rows: Iterable[object], name: str = "row") -> Iterator[tuple[str, object]]:
    return ((f"{name} {number}", row) for number, row in enumerate(rows, start=1))


def _document(where: str, row: object) -> str:
    """The text of a row of public text.

    Raises:
        DataError: it is no object with a string `text`.
    """
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str) or not is_unicode(text):
        said = f"; it has {', '.join(map(str, row))}" if isinstance(row, dict) else ""
        raise DataError(f'{where}: expected a JSON object with a string "text" in UTF-8{said}')
    return text


def public_texts(
    source: str = "bundled",
    *,
    tokenizer: Any,
    max_tokens: int = 64,
    whole_sentences: bool = False,
    fewest: int = 0,
    wanted_by: str = "",
) -> list[str]:
    """Read public texts of at most `max_tokens` tokens, without duplicates, in file order.

    Of a corpus of many documents and more than `MOST_PUBLIC_CHARACTERS` they are of every second
    document, every fourth, or as few as are that long together: what is drawn of them is some
    thousand.

    Args:
        source: "bundled" for the passages that ship with the package (their README gives sources
            and licences), a JSONL file (also .gz) with a `text` in every line, or another name of
            `flower_privsyn.data.public_corpus`. Longer texts are cut into pieces.
        tokenizer: the embedding model's.
        max_tokens: length of a piece, >= 1.
        whole_sentences: cut longer texts only where a sentence ends (`Chunking.pieces`), and of
            prose leave out what is no whole sentence, unless fewer than `fewest` were left.
        fewest: texts that there must be.
        wanted_by: what needs so many, such as "num-candidates = 24".

    Raises:
        ConfigError: there are fewer than `fewest`.
        DataError: the file is missing or a line is not as described.
        MissingExtraError: it is a data set, and the library is not installed.
    """
    documents = _thinned(PublicCorpus.find(source, setting="public-text").documents())
    pieces = Chunking(max_tokens=max_tokens).pieces(
        documents, tokenizer=tokenizer, at_sentences=whole_sentences
    )
    texts = list(dict.fromkeys(itertools.chain.from_iterable(pieces)))
    if len(texts) < fewest:
        raise ConfigError(
            f"{wanted_by} needs at least {fewest} different texts of at most {max_tokens} tokens, "
            f'and public-text = "{source}" holds {len(texts)}'
        )
    whole = list(filter(is_whole, texts)) if whole_sentences else []
    return whole if len(whole) >= max(fewest, len(texts) / 2) else texts


def _thinned(documents: Iterable[str]) -> list[str]:
    """Every document; where they are too long together, evenly fewer of them, in their order."""
    kept, every, characters = list[str](), 1, 0
    for place, document in enumerate(documents):
        if place % every == 0:
            kept.append(document)
            characters += len(document)
        while characters > MOST_PUBLIC_CHARACTERS and len(kept) > _FEW_DOCUMENTS:
            kept, every = kept[::2], 2 * every
            characters = sum(map(len, kept))
    return kept


def public_documents(source: str | Path, *, setting: str) -> list[str]:
    """Read public documents whole, in the order of the files and of their lines.

    Args:
        source: as `flower_privsyn.data.public_corpus` names corpora; what begins with a dot in a
            folder is passed over.
        setting: what named it, for the sentence that says it cannot be read.

    Returns:
        The documents that are not empty, at least one.

    Raises:
        DataError: A file is missing, cannot be read or is not as described, or there is no text.
    """
    corpus = PublicCorpus.find(source, setting=setting)
    texts = [text for text in corpus.documents() if text.strip()]
    if not texts:
        raise DataError(f'{setting} = "{source}": {corpus.path or corpus.source} holds no text')
    return texts
