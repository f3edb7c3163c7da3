"""Which files hold rows, by their names, and how they are opened."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, cast

from flower_privsyn.errors import DataError

Format = Literal["JSON", "rows of delimited text (CSV, TSV)", "Parquet"]

_TEXTS: Final[dict[str, Format]] = {
    ".jsonl": "JSON",
    ".ndjson": "JSON",
    ".json": "JSON",
    ".csv": "rows of delimited text (CSV, TSV)",
    ".tsv": "rows of delimited text (CSV, TSV)",
    ".tab": "rows of delimited text (CSV, TSV)",
}
_FORMATS: Final[dict[str, Format]] = {
    **{name + packed: kind for name, kind in _TEXTS.items() for packed in ("", ".gz")},
    ".parquet": "Parquet",
    ".pq": "Parquet",
}

READ: Final = (
    "JSON lines (.jsonl), a JSON array (.json), CSV (.csv) and TSV (.tsv), each also .gz, "
    "Parquet (.parquet), or a folder of one of these or of .txt files"
)
"""What is read, for sentences."""


class EmptyError(DataError):
    """A file has no rows: it is refused where it is named, and passed over in a folder."""


class ColumnError(DataError):
    """A file lacks a column, or has it twice: so it was made, whatever users wrote into it."""


def suffix_of(path: Path) -> str | None:
    """The ending of a name that says that a file holds rows, such as ".csv.gz"."""
    name = path.name.lower()
    return next((suffix for suffix in _FORMATS if name.endswith(suffix)), None)


def format_of(path: Path) -> Format:
    """How a file is to be read, by its name.

    Raises:
        DataError: The name says nothing.
    """
    suffix = suffix_of(path)
    if suffix is None:
        hint = ""
        if path.suffix.lower() == ".txt":
            hint = " (of texts name the folder: each file in it, or each folder, is one user)"
        raise DataError(f"{path} has the suffix {path.suffix!r}; what is read: {READ}{hint}.")
    return _FORMATS[suffix]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read from, unpacked where its name ends in `.gz`.

    Raises:
        DataError: While it is read: it is no complete gzip file.
        OSError: It cannot be read.
    """
    packed = path.name.lower().endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            yield io.BufferedReader(cast(io.RawIOBase, file)) if packed else cast(BinaryIO, file)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DataError(f"{path} is not a complete gzip file.") from None
