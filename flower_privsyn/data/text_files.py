"""A folder of .txt files: each file is a text, and its place says whose it is."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flower_privsyn.data.columns import UNUSABLE, Columns, Rows, typed
from flower_privsyn.errors import DataError

_SUFFIX: Final = ".txt"


def text_files(folder: Path) -> list[tuple[str, Path]]:
    """The texts of a folder and whose they are, in the order of their names.

    Where the folder holds folders with texts, each of these is one user, named as the folder, with
    everything below it. Where it holds only texts, each file is one user, named as the file
    without `.txt`. What begins with a dot is passed over.

    Args:
        folder: Of the texts.

    Raises:
        DataError: Texts lie beside folders with texts, so that it is unclear what a user is.
        OSError: A folder cannot be read.
    """
    alone = [path for path in _visible(folder) if path.suffix.lower() == _SUFFIX and path.is_file()]
    below = [
        (person.name, path)
        for person in _visible(folder)
        if person.is_dir()
        for path in _below(person)
    ]
    if alone and below:
        raise DataError(
            f"{folder} holds .txt files beside folders of .txt files: let each file be one user, "
            "or each folder."
        )
    return below or [(path.stem, path) for path in alone]


def read_text_files(folder: Path, files: list[tuple[str, Path]], columns: Columns) -> Rows:
    """Read texts that `text_files` has found; none of them has a date.

    Raises:
        DataError: The name of a file or folder is not UTF-8, or, where the owner looks, a text.
        OSError: A file cannot be read.
    """
    import pyarrow as pa

    clients, texts = [], []
    for name, path in files:
        # The column of ids is not theirs to name: a file name is a user.
        if columns.user_id is None and columns.cell(name, str(folder)) == UNUSABLE:
            raise DataError(f"{folder} holds a name that is not UTF-8.")
        clients.append(name)
        texts.append(columns.cell(_text(path), str(path)))
    of_files = Columns("user", "text", "", columns.user_id, strict=columns.strict)
    strings = pa.large_string()
    table = pa.table({"user": pa.array(clients, strings), "text": pa.array(texts, strings)})
    rows = typed(table, of_files)
    rows.undated = "texts in files have none"
    rows.unlabelled = "texts in files have none"
    return rows


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _below(folder: Path) -> Iterator[Path]:
    for path in _visible(folder):
        if path.is_dir():
            yield from _below(path)
        elif path.suffix.lower() == _SUFFIX and path.is_file():
            yield path


def _text(path: Path) -> str:
    """A text; bytes that are not UTF-8 as halves of surrogate pairs."""
    return path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
