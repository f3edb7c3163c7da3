"""From a file, a folder or a table to its rows; `Columns` says what they mean."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from flower_privsyn.data.columns import Cells, Columns, is_unicode
from flower_privsyn.errors import DataError

_LINES: Final = (".jsonl", ".ndjson", ".json")
_DELIMITED: Final = (".csv", ".tsv", ".tab")
_PARQUET: Final = (".parquet", ".pq")
_SUFFIXES: Final = (*(n + end for n in _LINES + _DELIMITED for end in ("", ".gz")), *_PARQUET)

READ: Final = (
    "JSON lines (.jsonl), a JSON array (.json), CSV (.csv) and TSV (.tsv), each also .gz, "
    "Parquet (.parquet), or a folder of one of these or of .txt files"
)
"""What is read, for sentences."""

_DELIMITERS: Final = ",\t;|"
# Rows of Parquet that are in memory together.
_PART_ROWS: Final = 2**15
# What is too long for a document is its user's affair, and must not end the reading.
_LONGEST_FIELD: Final = 2**31 - 1

#: Where a table says which of its files count, and who writes such ones.
_JOURNALS: Final = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}


# ---- files and folders -------------------------------------------------------------------------


def suffix_of(path: Path) -> str | None:
    """The ending of a name that says that a file holds rows, such as ".csv.gz"."""
    name = path.name.lower()
    return next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)


def read_file(path: Path, columns: Columns) -> Iterator[tuple[str, Cells]]:
    """The rows of a file, told by its name, and what sentences call each.

    Raises:
        DataError: The name says nothing, there is no such column, or a row does not say whose it
            is; the sentence names the line or row, and never quotes what stands there.
        OSError: It cannot be read.
    """
    suffix = suffix_of(path)
    if suffix is None:
        hint = ""
        if path.suffix.lower() == ".txt":
            hint = " (of texts name the folder: each file in it, or each folder, is one user)"
        raise DataError(f"{path} has the suffix {path.suffix!r}; what is read: {READ}{hint}.")
    if suffix in _PARQUET:
        yield from _read_parquet(path, columns)
    elif suffix.removesuffix(".gz") in _LINES:
        yield from _read_json(path, columns)
    else:
        yield from _read_delimited(path, columns)


def read_folder(folder: Path, columns: Columns) -> Iterator[tuple[str, Cells]]:
    """The rows of the data files of a folder in the order of their names, or else its texts.

    Where it holds no data files but folders with texts, each of these is one user, named as the
    folder, with everything below it. Where it holds only texts, each file is one user, named as the
    file without `.txt`. What begins with a dot is passed over.

    Raises:
        DataError: As `read_file`; or texts lie beside folders with texts, so that it is unclear
            what a user is; or it is a table that keeps rows which were deleted.
        OSError: A file or folder cannot be read.
    """
    for name, writer in _JOURNALS.items():
        if (folder / name).is_dir():
            # People who had their text deleted would be asked about it.
            raise DataError(
                f"{folder} is a table of {writer} ({name}), whose files also hold rows that were "
                "deleted or changed: write what it holds now as Parquet, and name that folder."
            )
    visible = _visible(folder)
    files = [path for path in visible if suffix_of(path) is not None and path.is_file()]
    for file in files:
        yield from read_file(file, columns)
    if not files:
        yield from _read_texts(folder, columns)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def files_below(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, in the order of their paths; hidden ones are not.

    Raises:
        OSError: A folder cannot be read.
    """
    for path in _visible(folder):
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def _read_texts(folder: Path, columns: Columns) -> Iterator[tuple[str, Cells]]:
    """The texts of a folder of `.txt` files; none of them has a date or a label."""
    texts = [path for path in files_below(folder) if path.suffix.lower() == ".txt"]
    if not texts:
        raise DataError(f"{folder} holds no data file; what is read: {READ}.")
    names = [path.relative_to(folder).parts for path in texts]
    if len({len(parts) > 1 for parts in names}) > 1:
        raise DataError(
            f"{folder} holds .txt files beside folders of .txt files: let each file be one user, "
            "or each folder."
        )
    for path, parts in zip(texts, names, strict=True):
        user = parts[0] if len(parts) > 1 else path.stem
        yield str(path), {columns.client: user, columns.texts[0]: text_of(path)}


# ---- lines of text -----------------------------------------------------------------------------


def text_of(path: Path) -> str:
    """The text of a file; bytes that are not UTF-8 as halves of surrogate pairs."""
    return path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.TextIOWrapper]:
    """A file to read text from, unpacked where its name ends in `.gz`; bytes as in `text_of`.

    Raises:
        DataError: While it is read: it is no complete gzip file.
        OSError: It cannot be read.
    """
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
            yield text
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise DataError(f"{path} is not a complete gzip file.") from None


def _read_json(path: Path, columns: Columns) -> Iterator[tuple[str, Cells]]:
    """Objects, one in each line, or those of an array."""
    first: dict[str, Any] = {}
    unseen = set(columns.texts)
    for place, value in json_values(path):
        row = _row(place, value, columns)
        first = first or row
        unseen -= row.keys()
        # Lines have no columns: what is in none of a row's keys must not decide for the file.
        yield place, {name: row.get(name) for name in columns.wanted}
    if first and unseen and columns.strict:
        raise DataError(f"{path} {columns.missing(min(unseen), list(first))}.")


def json_values(path: Path) -> Iterator[tuple[str, object]]:
    """What stands in each line of a file or in its array, None where it is no JSON, and where.

    Raises:
        DataError: The array is broken, or the file is no complete gzip file.
        OSError: It cannot be read.
    """
    begun = False
    with _opened(path) as text:
        # Not `splitlines`: a text may hold U+2028 and other separators unescaped.
        for number, line in enumerate(iter(text.readline, ""), start=1):
            try:
                if not begun and line.lstrip().startswith("["):
                    line += text.read()
                    entries = enumerate(json.loads(line), start=1)
                    yield from ((f"{path} entry {place}", entry) for place, entry in entries)
                elif line.strip():
                    begun = True
                    yield f"{path} line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                if begun:
                    yield f"{path} line {number}", None
                    continue
                at = number - 1 + getattr(error, "lineno", 1)
                raise DataError(
                    f"{path} line {at}: the JSON array is broken there, so nobody knows whose the "
                    "rest is."
                ) from None


def _row(place: str, row: object, columns: Columns) -> dict[str, Any]:
    """A JSON object that says whose it is."""
    if not isinstance(row, dict):
        raise DataError(
            f"{place}: not a JSON object, so nobody knows whose it is; write each row as one "
            "object, on a line of its own."
        )
    if columns.client in row:
        return row
    known = ""
    if any(isinstance(value, list | dict) for value in row.values()):
        known = (
            "; of one object with all users in it, as LEAF writes it, make a row for each "
            f'document: {{"{columns.client}": ..., "{columns.texts[0]}": ...}}'
        )
    elif columns.strict:
        keys = [repr(key) for key in list(row)[:12] if len(key) <= 40]
        known = f"; it has {', '.join(keys) or 'no key'}, and client-column says which key"
    raise DataError(f"{place}: the key {columns.client!r} is missing{known}.")


def _read_delimited(path: Path, columns: Columns) -> Iterator[tuple[str, Cells]]:
    """Rows of CSV and TSV, read strictly, with the names of the columns in the first of them.

    Fields in double quotes may hold line breaks, the delimiter, and quotes written twice. Lines of
    which all fields are blank, as Excel writes of empty rows, are passed over.
    """
    # Of the whole process; nothing that reads CSV beside this fails of it.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    with _opened(path) as text:
        before, delimiter, names = _header(path, text, columns)
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        line = before + 1  # in which the row begins
        try:
            for row in reader:
                if any(field.strip() for field in row):
                    if len(row) != len(names):
                        raise DataError(
                            f"{path} line {line}: {len(row)} field{'s' if len(row) > 1 else ''} "
                            f"where the first row has {len(names)}; a text that holds the "
                            "delimiter or a line break must stand in double quotes."
                        )
                    cells = dict(zip(names, row, strict=True))
                    yield f"{path} line {line}", cells
                line = before + reader.line_num + 1
        except csv.Error:
            raise DataError(
                f"{path} line {line}: the quotes of a field do not match; a field in quotes ends "
                'with one, and quotes inside it are written twice ("").'
            ) from None


def _header(path: Path, text: io.TextIOWrapper, columns: Columns) -> tuple[int, str, list[str]]:
    """How many lines it takes, what parts the fields, and the names of the columns.

    The delimiter is what a first line `sep=;` of Excel names, or whichever of comma, tab, semicolon
    and bar gives the columns that are read, or else most of them.
    """
    lines, delimiters = 0, _DELIMITERS
    if path.name.lower().removesuffix(".gz").endswith((".tsv", ".tab")):
        delimiters = "\t" + delimiters
    for line in iter(text.readline, ""):
        lines += 1
        if line.lower().startswith("sep="):
            delimiters = line[4:5] if line[4:5] in tuple(_DELIMITERS) else delimiters
        elif line.strip():
            break
    else:
        return lines, delimiters[0], []
    # Of the names of the columns alone: what follows is somebody's text.
    if "\0" in line or not is_unicode(line):
        raise DataError(
            f"{path} holds no UTF-8 text in its first line (UTF-16, an Excel workbook, a ZIP "
            "archive?): save it as CSV in UTF-8."
        )
    found = [
        (one, [name.strip() for name in next(csv.reader([line], delimiter=one))])
        for one in delimiters
    ]
    delimiter, names = max(
        found, key=lambda one: (len(set(columns.required).intersection(one[1])), len(one[1]))
    )
    columns.check(names, str(path))
    return lines, delimiter, names


# ---- Arrow and pandas --------------------------------------------------------------------------


def _read_parquet(path: Path, columns: Columns) -> Iterator[tuple[str, Cells]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns.check(names, str(path))
            present, done = [name for name in columns.wanted if name in names], 0
            for batch in file.iter_batches(batch_size=_PART_ROWS, columns=present):
                table = pa.Table.from_batches([batch])
                yield from rows_of_table(table, columns, str(path), before=done)
                done += table.num_rows
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a Parquet file ({type(error).__name__}).") from None


def is_table(source: Any) -> bool:
    """Whether this is a table in memory that Arrow or pandas reads, and no data set."""
    if hasattr(source, "with_format"):  # a data set says more than its columns
        return False
    return any(
        hasattr(source, name) for name in ("__arrow_c_stream__", "__arrow_c_array__", "itertuples")
    )


def rows_of_table(
    source: Any, columns: Columns, where: str, *, before: int = 0
) -> Iterator[tuple[str, Cells]]:
    """The rows of a table in memory, or of a part of one, and what sentences call each.

    Args:
        source: See `is_table`. A stream of batches is read to its end.
        columns: Which to read; others may hold anything.
        where: The rows are from, for sentences.
        before: Rows of the source before these.

    Raises:
        DataError: It has no such column, one twice, or one of another type.
    """
    import pyarrow as pa

    frame = hasattr(source, "itertuples")  # of pandas
    try:
        table = source if frame else pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{where} is none that Arrow reads ({type(error).__name__}).") from None
    names = list(map(str, table.columns)) if frame else table.column_names
    columns.check(names, where)
    read = {
        name: _objects(table.iloc[:, at]) if frame else _values(table[name], name, columns, where)
        for at, name in enumerate(names)
        if name in columns.wanted
    }
    there = {name: values for name, values in read.items() if values is not None}
    for number, row in enumerate(zip(*there.values(), strict=True), start=before + 1):
        yield f"{where} row {number}", dict(zip(there, row, strict=True))


def _objects(column: Any) -> list[Any]:
    """The values of a column of pandas, each as it is.

    Not by Arrow, which takes a type that suits all of them: one user's value would decide how
    everybody's are read.
    """
    return [None if no else one for one, no in zip(column, column.isna(), strict=True)]


def _values(column: Any, name: str, columns: Columns, where: str) -> list[Any] | None:
    """The values of a column of Arrow; None of one of dates whose type has none."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if kind in (pa.string(), pa.large_string()) or str(kind) == "string_view":
        # As bytes: Parquet does not check that they are UTF-8.
        found = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
        return [one if one is None else one.decode("utf-8", "surrogateescape") for one in found]
    if column.null_count == len(column):
        return [None] * len(column)
    if name in columns.texts:
        raise DataError(f"{where}: {name!r} must be a string, but the column holds {kind}.")
    if types.is_date(kind) or types.is_timestamp(kind):
        # By NumPy, to which a day beyond Python's calendar is a number: one such value would take
        # everybody's away.
        return cast(list[Any], column.to_numpy().astype("datetime64[D]").tolist())
    return None if name == columns.date else cast(list[Any], column.to_pylist())
