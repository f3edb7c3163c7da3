"""Rows of JSON, one object per line."""

from __future__ import annotations

import codecs
import json
from datetime import date
from pathlib import Path
from typing import Any

from flower_privsyn.data import bounded, flat_json
from flower_privsyn.data.columns import Columns, Problem, Rows, parse_date, typed
from flower_privsyn.errors import DataError


def read_json_lines(path: Path, columns: Columns) -> Rows:
    """Arrow's parser where every line is as it should be, else line by line to name the bad one.

    Raises:
        DataError: The file is empty, or a line does not say whose it is.
        OSError: The file cannot be read.
    """
    data = bounded.read_bytes(path)
    if not data or data.isspace():
        raise DataError(f"{path} is empty.")
    table = _parse_fast(data, columns)
    if table is not None:
        try:
            return typed(table, columns)
        except (Problem, UnicodeDecodeError):
            pass  # the slow way finds the line, or an id that is an integer here and there
    return typed(_parse_by_line(path, data, columns), columns)


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


def _parse_by_line(path: Path, data: bytearray, columns: Columns) -> Any:
    import pyarrow as pa

    clients: list[str] = []
    texts: list[str | None] = []
    dates: list[date | None] = []
    number = 0

    def bad(rule: str) -> DataError:
        return DataError(f"{path} line {number}: {rule}.")

    for number, line in bounded.lines(data):
        row = _parse_line(line, first=number == 1)
        if row is None:
            if columns.user_id is None:
                raise bad("not a JSON object, so nobody knows whose it is")
            row = {}  # of the one user there is
        if columns.user_id is None:
            if columns.client not in row:
                raise bad(f"the key {columns.client!r} is missing")
            client = row[columns.client]
            if isinstance(client, bool) or not isinstance(client, str | int):
                raise bad(f"{columns.client!r} must be a string or an integer, not {_kind(client)}")
            if client == "":
                raise bad(f"{columns.client!r} must not be empty")
            if _clean(client := str(client)) is None:
                raise bad(f"{columns.client!r} must be text that UTF-8 can hold")
            clients.append(client)
        texts.append(_clean(row.get(columns.text)))
        dates.append(parse_date(row.get(columns.date)))
    if not texts:
        raise DataError(f"{path} is empty.")
    arrays = {columns.text: pa.chunked_array([pa.array(texts, pa.large_string())])}
    if columns.user_id is None:
        arrays[columns.client] = pa.chunked_array([pa.array(clients, pa.large_string())])
    if columns.date not in arrays:
        # Lines have no columns: that no line has a date is what the users wrote, not a schema.
        arrays[columns.date] = pa.chunked_array([pa.array(dates, pa.date32())])
    return pa.table(arrays)


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


def _clean(value: object) -> str | None:
    """Text as it is; None for everything else, and for what UTF-8 cannot hold."""
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value
