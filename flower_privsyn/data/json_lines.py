"""Rows of JSON: one object per line, or the objects of an array."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from flower_privsyn.data import bounded, flat_json, formats
from flower_privsyn.data.columns import (
    UNUSABLE,
    Columns,
    Problem,
    Rows,
    parse_date,
    parse_label,
    typed,
)
from flower_privsyn.errors import DataError

Row = tuple[str, dict[str, Any] | None]
"""Where a row stands, for a sentence, and what it is; None where it is no JSON object."""


def read_json_lines(path: Path, columns: Columns) -> Rows:
    """Arrow's parser where every line is as it should be, else line by line to name the bad one.

    Raises:
        EmptyError: The file is empty.
        DataError: A line does not say whose it is.
        OSError: The file cannot be read.
    """
    data = bounded.read_bytes(path)
    if not data or data.isspace():
        raise formats.EmptyError(f"{path} is empty.")
    table = _parse_fast(data, columns)
    if table is not None:
        try:
            rows = typed(table, columns)
            if not columns.strict or _any_text(rows):
                return rows
        except (Problem, UnicodeDecodeError):
            pass  # the slow way finds the line, or an id that is an integer here and there
    return _read_rows(path, _lines(path, data), data, columns)


def read_json_array(path: Path, columns: Columns) -> Rows:
    """The objects of one JSON array, each read as a line is.

    Raises:
        EmptyError: The array is empty.
        DataError: It is broken, or an entry does not say whose it is.
        OSError: The file cannot be read.
    """
    data = bounded.read_bytes(path)
    del data[: data.index(b"[")]
    return _read_rows(path, _entries(path, data), data, columns)


def _any_text(rows: Rows) -> bool:
    import pyarrow.compute as pc

    return not pc.all(rows.unusable).as_py()


def _parse_fast(data: bytearray, columns: Columns) -> Any | None:
    import pyarrow as pa
    import pyarrow.json as pj

    schema = pa.schema([(name, pa.string()) for name in columns.wanted])
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            # Blocks hold whole lines, so they have to be longer than the longest document.
            read_options=pj.ReadOptions(block_size=16 << 20),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
        # The parser accepts two objects on one line, a truncated character, a duplicate key.
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        table.validate(full=True)
    except (pa.ArrowException, OSError):
        return None
    return table if table.num_rows == lines else None


def _lines(path: Path, data: bytearray) -> Iterator[Row]:
    for number, line in bounded.lines(data):
        yield f"{path} line {number}", _parse_line(line, first=number == 1)


def _entries(path: Path, data: bytearray) -> Iterator[Row]:
    for number, entry in enumerate(flat_json.entries(data), start=1):
        if entry is None:
            raise DataError(
                f"{path}: the JSON array is broken at its entry {number}, which is no object or "
                "does not end, so nobody knows whose the rest is."
            )
        yield f"{path} entry {number}", _parse_line(bounded.shortened(entry), first=False)


def _read_rows(path: Path, rows: Iterable[Row], data: bytearray, columns: Columns) -> Rows:
    """Check rows one by one; the first that is bad is named.

    Args:
        path: Of the file.
        rows: Of it.
        data: What it holds.
        columns: Which to read.
    """
    import pyarrow as pa

    clients: list[str] = []
    texts: dict[str, list[str | None]] = {name: [] for name in columns.texts}
    labels: dict[str, list[str | None]] = {name: [] for name in columns.labels}
    dates: list[date | None] = []
    first: dict[str, Any] | None = None
    for place, row in rows:
        if row is None:
            if columns.user_id is None:
                seems = "" if dates else _what_it_is(data)
                raise DataError(f"{place}: not a JSON object, so nobody knows whose it is{seems}.")
            row = {}  # of the one user there is
        first = row if first is None else first
        if columns.user_id is None:
            clients.append(_client(row, place, columns))
        for name in columns.texts:
            texts[name].append(columns.cell(row.get(name), place))
        for name in columns.labels:
            labels[name].append(parse_label(row.get(name)))
        dates.append(parse_date(row.get(columns.date)))
    if first is None:
        raise formats.EmptyError(f"{path} is empty.")
    if columns.strict:
        _check_texts(path, first, texts, columns)
    arrays = {
        name: pa.chunked_array([pa.array(values, pa.large_string())])
        for name, values in texts.items()
    }
    if columns.user_id is None:
        arrays[columns.client] = pa.chunked_array([pa.array(clients, pa.large_string())])
    for name, values in labels.items():
        arrays.setdefault(name, pa.chunked_array([pa.array(values, pa.large_string())]))
    if columns.date not in arrays:
        # Lines have no columns: that no line has a date is what the users wrote, not a schema.
        arrays[columns.date] = pa.chunked_array([pa.array(dates, pa.date32())])
    return typed(pa.table(arrays), columns)


def _client(row: dict[str, Any], place: str, columns: Columns) -> str:
    """Whose a row is."""
    name = columns.client
    if name not in row:
        known = f"; it has {_keys(row)}, and client-column says which key" if columns.strict else ""
        raise DataError(f"{place}: the key {name!r} is missing{known}.")
    client = row[name]
    if isinstance(client, bool) or not isinstance(client, str | int):
        raise DataError(f"{place}: {name!r} must be a string or an integer, not {_kind(client)}.")
    if client == "":
        raise DataError(f"{place}: {name!r} must not be empty.")
    if (text := columns.cell(str(client), place)) in (None, UNUSABLE) or text is None:
        raise DataError(f"{place}: {name!r} must be text that UTF-8 can hold.")
    return text


def _check_texts(
    path: Path, first: dict[str, Any], texts: dict[str, list[str | None]], columns: Columns
) -> None:
    """Tell the owner that a column of text is nowhere, or holds no strings."""
    for name, values in texts.items():
        if all(value is None for value in values):
            raise DataError(f"{path} {columns.missing(name, first, schema=False)}.")
        if name in first and all(value in (None, UNUSABLE) for value in values):
            raise DataError(
                f"{path}: {name!r} must be a string, and is one in no row; in the first it is "
                f"{_kind(first[name])}."
            )


def _keys(row: dict[str, Any]) -> str:
    names = [repr(name) for name in list(row)[:12] if len(name) <= 40]
    return ", ".join(names) or "no key"


def _what_it_is(data: bytearray) -> str:
    """What a file looks like whose first line is no JSON object, to go on with in a sentence."""
    begin = bytes(data[: 2**12]).removeprefix(codecs.BOM_UTF8).lstrip()
    if begin.startswith(b"{"):
        if begin[1:].split(b"\n", 1)[0].strip() == b"":
            return "; it looks like one object over several lines: write each object on one line"
        return ""
    return f"; the file looks like {formats.guess(begin)}"


def _kind(value: object) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return (
        "an array"
        if isinstance(value, list)
        else "an object"
        if isinstance(value, dict)
        else "a string"
    )


def _parse_line(line: bytes, *, first: bool) -> dict[str, Any] | None:
    """A JSON object, or None; bytes that are not UTF-8 become halves of surrogate pairs."""
    line = line.removeprefix(codecs.BOM_UTF8) if first else line
    if len(line) > bounded.MAX_LINE_BYTES:
        return flat_json.outermost(line)  # which costs little, whatever stands in it
    try:
        row = json.loads(line.decode("utf-8", "surrogateescape"), parse_int=flat_json.whole_number)
    except RecursionError:
        return flat_json.outermost(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
