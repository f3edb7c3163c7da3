"""Public text: the seeds of synthesis. Nobody's data, so it may be read, sent and shown."""

from __future__ import annotations

import codecs
import itertools
from pathlib import Path
from typing import Any

from flower_privsyn.data import bounded, flat_json
from flower_privsyn.data.cut import Cut
from flower_privsyn.errors import DataError
from flower_privsyn.files import expanded

#: The passages that ship with the package.
BUNDLED = Path(__file__).parent / "passages" / "passages.jsonl.gz"


def public_texts(
    source: str = "bundled",
    *,
    tokenizer: Any,
    max_tokens: int = 64,
    at_sentences: bool = False,
    setting: str = "public-text",
) -> list[str]:
    """Read public texts of at most `max_tokens` tokens, without duplicates, in file order.

    Args:
        source: "bundled" for the passages that ship with the package (their README gives sources
            and licences), or a JSONL file (also .gz) with a `text` in every line. Longer texts are
            cut into pieces.
        tokenizer: the embedding model's.
        max_tokens: length of a piece, >= 1.
        at_sentences: cut longer texts only where a sentence ends (`Cut.pieces`).
        setting: what named the file, for the sentence that says it cannot be read.

    Raises:
        DataError: the file is missing or a line is not as described.
    """
    path, content = _read(source, setting)
    texts = [text_of_line(path, number, line) for number, line in bounded.lines(content)]
    pieces = Cut(max_tokens=max_tokens).pieces(
        texts, tokenizer=tokenizer, at_sentences=at_sentences
    )
    return list(dict.fromkeys(itertools.chain.from_iterable(pieces)))


def labels_of_public_texts(
    source: str, *, tokenizer: Any, max_tokens: int = 64, at_sentences: bool = False
) -> dict[str, str]:
    """The class of each public text whose line has a `label`, by text as `public_texts` cuts it.

    Args:
        source: as for `public_texts`; the bundled passages have no labels.
        tokenizer: as for `public_texts`.
        max_tokens: as for `public_texts`.
        at_sentences: as for `public_texts`.

    Raises:
        DataError: as for `public_texts`.
    """
    path, content = _read(source, "public-text")
    texts, labels = [], []
    for number, line in bounded.lines(content):
        label = (flat_json.outermost(_unmarked(line, number)) or {}).get("label")
        if isinstance(label, str | int) and not isinstance(label, bool):
            texts.append(text_of_line(path, number, line))
            labels.append(str(label).strip())
    cut = Cut(max_tokens=max_tokens)
    found = cut.pieces(texts, tokenizer=tokenizer, at_sentences=at_sentences)
    pairs = zip(found, labels, strict=True)
    return {piece: label for pieces, label in pairs for piece in pieces}


def _read(source: str, setting: str) -> tuple[Path, bytearray]:
    """A file of public text and where it is."""
    path = BUNDLED if source == "bundled" else expanded(source)
    try:
        content = bounded.read_bytes(path)
        content.decode("utf-8")
    except (OSError, DataError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or (
            str(error) if isinstance(error, DataError) else type(error).__name__
        )
        raise DataError(f'{setting} = "{source}": {path} cannot be read ({reason})') from error
    return path, content


def _unmarked(line: bytes, number: int) -> bytes:
    """A line without the byte order mark that the first one may begin with."""
    return line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def public_documents(source: str | Path, *, setting: str) -> list[str]:
    """Read public documents whole, in the order of the files and of their lines.

    Args:
        source: "bundled" for the passages that ship with the package, a JSONL file (also .gz) with
            a `text` in every line, a .txt file that is one document, or a folder with any of them,
            also in folders below it; what begins with a dot is passed over.
        setting: what named it, for the sentence that says it cannot be read.

    Returns:
        The documents that are not empty, at least one.

    Raises:
        DataError: A file is missing, cannot be read or is not as described, or there is no text.
    """
    path = BUNDLED if source == "bundled" else expanded(source)
    try:
        files = _files(path) if path.is_dir() else [path]
        texts = [text for file in files for text in _documents(file) if text.strip()]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise DataError(f'{setting} = "{source}": {path} cannot be read ({reason})') from error
    if not texts:
        wanted = " (.jsonl, .jsonl.gz or .txt)" if path.is_dir() else ""
        raise DataError(f'{setting} = "{source}": {path} holds no text{wanted}')
    return texts


def _files(folder: Path) -> list[Path]:
    """The files of text below a folder, in the order of their paths."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.name.lower().endswith((".jsonl", ".jsonl.gz", ".txt"))
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _documents(path: Path) -> list[str]:
    content = bounded.read_bytes(path)
    if path.suffix.lower() == ".txt":
        return [content.removeprefix(codecs.BOM_UTF8).decode("utf-8")]
    content.decode("utf-8")
    return [text_of_line(path, number, line) for number, line in bounded.lines(content)]


def text_of_line(path: Path, number: int, line: bytes) -> str:
    """The text of one line of a public file.

    Args:
        path: of the file, for the sentence.
        number: of the line, from 1.
        line: a JSON object; the first one may begin with a byte order mark.

    Raises:
        DataError: it is no object with a string `text`.
    """
    text = (flat_json.outermost(_unmarked(line, number)) or {}).get("text")
    if not isinstance(text, str):
        raise DataError(f'{path} line {number}: expected a JSON object with a string "text"')
    return text
