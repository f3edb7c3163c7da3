"""Rows of CSV and TSV, with the names of the columns in the first of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from flower_privsyn.data.columns import UNUSABLE, Columns, Problem, Rows, typed
from flower_privsyn.data.formats import ColumnError, EmptyError, opened
from flower_privsyn.errors import DataError

_DELIMITERS: Final = (",", "\t", ";", "|")
# Rows that become Arrow arrays together.
_CHUNK: Final = 2**15
# What is too long for a document is its user's affair (`limits`), and must not end the reading.
_LONGEST_FIELD: Final = 2**31 - 1
_LONGEST_HEADER: Final = 2**20


class QuotesError(DataError):
    """Where a row ends is unknown."""


def read_delimited(path: Path, columns: Columns) -> Rows:
    """Read CSV by the standard library, strictly and in chunks.

    Fields in double quotes may hold line breaks, the delimiter, and quotes written twice. The
    delimiter is a comma, or whichever of tab, semicolon and bar parts the names of the columns.
    Blank lines are passed over, and a first line `sep=;` as Excel writes it.

    Raises:
        EmptyError: The file has no rows.
        ColumnError: It has no such column, or one twice.
        DataError: A row has more or fewer fields than
            the first one: then nobody knows whose it is.
        OSError: The file cannot be read.
    """
    # Of the whole process; nothing that reads CSV beside this fails of it.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    delimiter, names = _header(path, columns)
    table = _table(path, delimiter, names, columns)
    if not table.num_rows:
        raise EmptyError(f"{path} holds no rows below the names of its columns.")
    try:
        return typed(table, columns)
    except Problem as problem:
        place = path if problem.row is None else f"{path} row {problem.row + 1}"
        raise DataError(f"{place}: {problem.rule}.") from None


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line in which it begins, from 1."""
    with (
        opened(path) as file,
        io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        line = 1
        try:
            for row in reader:
                if line == 1 and row and row[0].lower().startswith("sep="):
                    pass  # Excel's line, which names the delimiter
                elif len(row) > 1 or any(field.strip() for field in row):
                    yield line, row
                line = reader.line_num + 1
        except csv.Error:
            raise QuotesError(
                f"{path} line {line}: the quotes of a field do not match; a field in quotes ends "
                'with one, and quotes inside it are written twice ("").'
            ) from None


def _header(path: Path, columns: Columns) -> tuple[str, list[str]]:
    """What parts the fields, and the names of the columns."""
    with opened(path) as file:
        first = file.readline(_LONGEST_HEADER)
    # Of the names of the columns alone: what follows is somebody's text.
    if b"\0" in first or not _is_utf8(first):
        raise DataError(
            f"{path} holds no UTF-8 text in its first line (UTF-16, an Excel workbook, a ZIP "
            "archive?): save it as CSV in UTF-8."
        )
    usual = sorted(_DELIMITERS, key=lambda one: one != "\t") if _is_tsv(path) else _DELIMITERS
    found: list[tuple[str, list[str]]] = []
    for delimiter in usual:
        try:
            row = next(_rows(path, delimiter), None)
        except QuotesError:  # of another delimiter's quotes
            if delimiter == usual[-1] and not found:
                raise
            continue
        if row is None:
            raise EmptyError(f"{path} is empty.")
        names = [name.strip() for name in row[1]]
        if set(columns.required) <= set(names):
            _check_names(names, path, columns)
            return delimiter, names
        found.append((delimiter, names))
    # That which gives most columns is what was meant.
    _, names = max(found, key=lambda one: len(one[1]))
    absent = next(name for name in columns.required if name not in names)
    raise ColumnError(f"{path} {columns.missing(absent, names, schema=False)}.")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_tsv(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith((".tsv", ".tab"))


def _check_names(names: Sequence[str], path: Path, columns: Columns) -> None:
    for name in columns.wanted:
        if names.count(name) > 1:
            raise ColumnError(f"{path} has {names.count(name)} columns {name!r}; one must be left.")


def _table(path: Path, delimiter: str, names: Sequence[str], columns: Columns) -> Any:
    """The wanted columns as an Arrow table of strings."""
    import pyarrow as pa

    wanted = [name for name in columns.wanted if name in names]
    places = [names.index(name) for name in wanted]
    schema = pa.schema([(name, pa.large_string()) for name in wanted])
    chunks: list[Any] = []
    cells: list[list[str | None]] = [[] for _ in wanted]
    rows = _rows(path, delimiter)
    next(rows)
    for line, row in rows:
        where = f"{path} line {line}"
        if len(row) != len(names):
            raise DataError(
                f"{where}: {len(row)} field{'s' if len(row) > 1 else ''} where the first row has "
                f"{len(names)}; a text that holds the delimiter or a line break must stand in "
                "double quotes."
            )
        for name, place, column in zip(wanted, places, cells, strict=True):
            value = columns.cell(row[place], where)
            if name == columns.client and columns.user_id is None:
                _check_id(value, name, where)
            column.append(value)
        if len(cells[0]) == _CHUNK:
            chunks.append(pa.record_batch(cells, schema=schema))
            cells = [[] for _ in wanted]
    chunks.append(pa.record_batch(cells, schema=schema))
    return pa.Table.from_batches(chunks, schema)


def _check_id(value: str | None, name: str, where: str) -> None:
    if not value:
        raise DataError(f"{where}: {name!r} must not be empty.")
    if value == UNUSABLE:
        raise DataError(f"{where}: {name!r} must be text that UTF-8 can hold.")
