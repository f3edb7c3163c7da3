"""Rows of JSON: one object per line, or the objects of an array."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from flower_privsyn.data.columns import (
    UNUSABLE,
    Columns,
    Problem,
    Rows,
    parse_date,
    parse_label,
    typed,
)
from flower_privsyn.data.formats import EmptyError, opened
from flower_privsyn.errors import DataError

Row = tuple[str, dict[str, Any] | None]
"""Where a row stands, for a sentence, and what it is; None where it is no JSON object."""


def read_json(path: Path, columns: Columns) -> Rows:
    """Arrow's parser where every line is as it should be, else row by row to name the bad one.

    Raises:
        EmptyError: The file has no rows.
        DataError: A row does not say whose it is.
        OSError: The file cannot be read.
    """
    with opened(path) as file:
        data = file.read().removeprefix(codecs.BOM_UTF8)
    if not data or data.isspace():
        raise EmptyError(f"{path} is empty.")
    if data[:64].lstrip().startswith(b"["):
        return _read_rows(path, _entries(path, data), columns)
    table = _parse_fast(data, columns)
    if table is not None:
        try:
            rows = typed(table, columns)
            if not columns.strict or _any_text(rows):
                return rows
        except (Problem, UnicodeDecodeError):
            pass  # the slow way finds the line, or an id that is an integer here and there
    return _read_rows(path, _lines(path, data), columns)


def _any_text(rows: Rows) -> bool:
    import pyarrow.compute as pc

    return not pc.all(rows.unusable).as_py()


def _parse_fast(data: bytes, columns: Columns) -> Any | None:
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


def _lines(path: Path, data: bytes) -> Iterator[Row]:
    # Not `splitlines`: a text may hold U+2028 and other separators unescaped.
    for number, line in enumerate(io.BytesIO(data), start=1):
        if line.strip():
            yield f"{path} line {number}", _object(line)


def _entries(path: Path, data: bytes) -> Iterator[Row]:
    try:
        found = json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise DataError(
            f"{path} line {line}: the JSON array is broken there, so nobody knows whose the rest "
            "is."
        ) from None
    for number, row in enumerate(found, start=1):
        yield f"{path} entry {number}", row if isinstance(row, dict) else None


def _object(line: bytes) -> dict[str, Any] | None:
    """A JSON object, or None; bytes that are not UTF-8 become halves of surrogate pairs."""
    try:
        row = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _read_rows(path: Path, rows: Iterable[Row], columns: Columns) -> Rows:
    """Check rows one by one; the first that is bad is named.

    Args:
        path: Of the file.
        rows: Of it.
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
                raise DataError(
                    f"{place}: not a JSON object, so nobody knows whose it is; write each row as "
                    "one object, on a line of its own."
                )
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
        raise EmptyError(f"{path} is empty.")
    if columns.strict:
        _check_texts(path, first, texts, columns)
    arrays = {name: pa.array(values, pa.large_string()) for name, values in texts.items()}
    if columns.user_id is None:
        arrays[columns.client] = pa.array(clients, pa.large_string())
    for name, values in labels.items():
        arrays.setdefault(name, pa.array(values, pa.large_string()))
    # Lines have no columns: that no line has a date is what the users wrote, not a schema.
    arrays.setdefault(columns.date, pa.array(dates, pa.date32()))
    return typed(pa.table(arrays), columns)


def _client(row: dict[str, Any], place: str, columns: Columns) -> str:
    """Whose a row is."""
    name = columns.client
    if name not in row:
        known = ""
        if any(isinstance(value, list | dict) for value in row.values()):
            known = (
                "; of one object with all users in it, as LEAF writes it, make a row for each "
                f'document: {{"{name}": ..., "{columns.texts[0]}": ...}}'
            )
        elif columns.strict:
            keys = [repr(key) for key in list(row)[:12] if len(key) <= 40]
            known = f"; it has {', '.join(keys) or 'no key'}, and client-column says which key"
        raise DataError(f"{place}: the key {name!r} is missing{known}.")
    client = row[name]
    if isinstance(client, bool) or not isinstance(client, str | int):
        raise DataError(
            f"{place}: {name!r} must be a string or an integer, not {type(client).__name__}."
        )
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
            raise DataError(f"{path}: {name!r} must be a string, and is one in no row.")
