"""What a file of users is: told by how it begins and by its name.

Known are JSON lines, a JSON array, CSV, TSV and Parquet. Of anything else this says what it looks
like, so that nobody has to guess why it is not read.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import zipfile
import zlib
from pathlib import Path
from typing import Final, Literal

from flower_privsyn.errors import DataError

Format = Literal["lines", "array", "delimited", "parquet"]

#: In words, for people.
NAMES: Final[dict[Format, str]] = {
    "lines": "JSON lines",
    "array": "a JSON array",
    "delimited": "rows of delimited text (CSV, TSV)",
    "parquet": "Parquet",
}

_JSON: Final = (".jsonl", ".ndjson", ".json")
_DELIMITED: Final = (".csv", ".tsv", ".tab")
SUFFIXES: Final = (
    *(name + packed for name in (*_JSON, *_DELIMITED) for packed in ("", ".gz")),
    ".parquet",
)
"""Of the files that are read out of a folder."""

READ: Final = (
    "JSON lines (.jsonl), a JSON array (.json), CSV (.csv) and TSV (.tsv), each also .gz, "
    "Parquet (.parquet), or a folder of one of these or of .txt files"
)
"""What is read, for sentences."""

_HEAD: Final = 2**16
_GZIP: Final = b"\x1f\x8b"
_PARQUET: Final = b"PAR1"
# How files begin that are no text.
_MAGIC: Final = (
    (b"%PDF", "a PDF"),
    (b"\xd0\xcf\x11\xe0", "an old Office file (.xls, .doc): save it as CSV"),
    (b"ARROW1", "an Arrow file: write Parquet instead"),
    (b"\xff\xff\xff\xff", "an Arrow stream: write Parquet instead"),
    (b"SQLite format 3", "an SQLite database: export it as CSV"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"7z\xbc\xaf", "a 7-Zip archive: unpack it first"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"{\\rtf", "a rich text document (RTF): save it as plain text"),
    (b"\xff\xfe\0\0", "UTF-32 text: save it as UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text: save it as UTF-8"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
)
# Files inside a ZIP archive that say what it is.
_ZIPPED: Final = (
    ("xl/workbook.xml", "an Excel workbook: save it as CSV"),
    ("word/document.xml", "a Word document: save it as plain text"),
    ("content.xml", "an OpenDocument file: save it as CSV or plain text"),
)


class EmptyError(DataError):
    """A file has no rows: it is refused where it is named, and passed over in a folder."""


class ColumnError(DataError):
    """A file lacks a column, or has it twice: so it was made, whatever users wrote into it."""


def suffix_of(path: Path) -> str | None:
    """The ending of a name that says that a file of a folder is data, such as ".csv.gz"."""
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def format_of(path: Path) -> Format:
    """How a file is to be read.

    JSON and Parquet are known by how they begin, whatever the name. Any text may be CSV: that takes
    a name that says so, and a text that is not JSON.

    Args:
        path: A file.

    Raises:
        EmptyError: It is empty.
        DataError: It is none of what is read; the sentence says what it looks like.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        raise EmptyError(f"{path} is empty.")
    name = path.name.lower()
    packed = head.startswith(_GZIP) or name.endswith(".gz")
    if packed:
        head = _unpacked(head, path)
    if head.startswith(_PARQUET) and not packed:
        return "parquet"
    if (binary := _binary(head, path, packed=packed)) is not None:
        raise DataError(f"{path} looks like {binary}; what is read: {READ}.")
    begin = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if begin.startswith(b"{"):
        return "lines"
    named = name.removesuffix(".gz")
    if begin.startswith(b"[") and not named.endswith(_DELIMITED):
        _check_array(begin, path)
        return "array"
    if named.endswith(_DELIMITED):
        return "delimited"
    if named.endswith(_JSON):
        return "lines"  # whose reader names the line
    if named.endswith(".parquet"):
        raise DataError(f"{path} is not a Parquet file: it looks like {guess(head)}.")
    raise DataError(_unnamed(path, head))


def _unnamed(path: Path, head: bytes) -> str:
    """What to say of a text whose name says nothing."""
    looks = guess(head)
    if looks in _DELIMITERS.values():
        return f"{path} looks like {looks}: give it a name that ends in .csv or .tsv."
    if path.suffix.lower() == ".txt":
        return (
            f"{path} is a single text: name the folder of such files, in which each file, or each "
            "folder of files, is one user."
        )
    return f"{path} has the suffix {path.suffix!r} and looks like {looks}; what is read: {READ}."


def _unpacked(head: bytes, path: Path) -> bytes:
    """How the content of a gzip file begins."""
    try:
        return zlib.decompressobj(31).decompress(head, _HEAD)
    except zlib.error:
        raise DataError(f"{path} is not a complete gzip file.") from None


def _binary(head: bytes, path: Path, *, packed: bool) -> str | None:
    """What a file is that is no UTF-8 text, in words; None for text."""
    if head.startswith(_PARQUET):
        return "Parquet inside gzip: unpack it first"
    if head.startswith(b"PK\x03\x04"):
        return "a ZIP archive: unpack it first" if packed else _zipped(path)
    if _is_tar(head):
        return "a tar archive: unpack it first"
    for begin, words in _MAGIC:
        if head.startswith(begin):
            return words
    if re.match(rb"(?i)\s*<(!doctype html|html|\?xml)", head):
        return "a page of HTML or XML"
    # Every second byte: Latin text in UTF-16 without its mark. Of the first line alone, which holds
    # the names of the columns: what follows is somebody's text, and must not decide about the file.
    begin = re.split(rb"[\r\n]", head[:512], maxsplit=1)[0]
    if begin.count(0) * 3 > len(begin):
        return "UTF-16 text without its mark, or no text at all: save it as UTF-8"
    return None


def _is_tar(head: bytes) -> bool:
    """Whether this is the header of a tar archive, which no row of text can look like.

    The mark stands where somebody's text may stand in a file of rows. What is before it in a header
    is filled up with NUL and is one line; a row of JSON holds no NUL, and one of CSV stands below
    the names of the columns.
    """
    before = head[:257]
    return head[257:262] == b"ustar" and b"\0" in before and not re.search(rb"[\r\n]", before)


def _zipped(path: Path) -> str:
    """What a ZIP archive is, in words."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        names = set()
    return next((what for name, what in _ZIPPED if name in names), "a ZIP archive: unpack it first")


def _check_array(begin: bytes, path: Path) -> None:
    """Refuse a JSON array whose entries cannot say whose they are."""
    first = begin[1:].lstrip()[:1]
    if first in (b"{", b"]", b""):
        return
    kinds = {b'"': "texts", b"[": "arrays"} | dict.fromkeys(
        (bytes([digit]) for digit in b"-0123456789"), "numbers"
    )
    kind = kinds.get(first)
    if kind is None:
        raise DataError(f"{path} begins with [ but is no JSON array; what is read: {READ}.")
    raise DataError(
        f"{path} looks like a JSON array of {kind}, which do not say whose they are: an array of "
        'objects {"client_id": ..., "text": ...} is needed.'
    )


_DELIMITERS: Final = {
    ",": "comma-separated text",
    "\t": "tab-separated text",
    ";": "semicolon-separated text",
}


def guess(head: bytes) -> str:
    """What kind of text this looks like, in words that quote nothing of it."""
    text = head.decode("utf-8", "replace")
    if not text.strip():
        return "white space"
    for delimiter, words in _DELIMITERS.items():
        try:
            rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
        except csv.Error:
            continue
        # The last row may be cut off.
        fields = {len(row) for row in rows[:8][: max(2, len(rows) - 1)]}
        if len(rows) > 1 and len(fields) == 1 and fields != {1}:
            return words
    return "plain text"
