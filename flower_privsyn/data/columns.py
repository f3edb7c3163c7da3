"""The columns of a source of rows: which to read, and what may stand in them.

The rules are the same for every kind of source, and judge the rows of all users at once.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Final

import numpy as np

from flower_privsyn.errors import ConfigError

_EPOCH: Final = date(1970, 1, 1)
_DATE_RULE: Final = "must be an ISO date such as 2025-03-18"


class Columns:
    """Which columns to read.

    Args:
        client: Column with the user id.
        text: Column with the text.
        date_: Column with the date.
        user_id: The one user of the source, whose rows name nobody; None where they do.

    Raises:
        ConfigError: A name is empty.
    """

    def __init__(self, client: str, text: str, date_: str, user_id: str | None) -> None:
        for key, value in (("client-column", client), ("text-column", text)):
            if not value:
                raise ConfigError(f"{key} must be the name of a column, got an empty string.")
        if user_id == "":
            raise ConfigError("user-id must not be empty.")
        self.client = client
        self.text = text
        self.date = date_
        self.user_id = user_id

    @property
    def required(self) -> tuple[str, ...]:
        """What a source without is refused."""
        return (self.text,) if self.user_id is not None else (self.client, self.text)

    @property
    def wanted(self) -> tuple[str, ...]:
        """What is read where it is there."""
        return (*self.required, self.date)


class Rows:
    """Three columns of one file: ids, texts and dates as Arrow arrays, without nulls but dates."""

    def __init__(self, clients: Any, texts: Any, unusable: Any, dates: Any | None) -> None:
        self.clients = clients  # string, or None where the source is one user
        self.texts = texts  # empty where unusable
        self.unusable = unusable  # bool
        self.dates = dates  # date32, nulls allowed; None if there is no such column


class Problem(Exception):  # noqa: N818 - a signal, turned into a DataError with its place
    """A row breaks a rule; ``row`` counts from 0, or is None for the whole source."""

    def __init__(self, row: int | None, rule: str) -> None:
        super().__init__(rule)
        self.row = row
        self.rule = rule


def typed(table: Any, columns: Columns) -> Rows:
    """Check types, nulls and characters; the same rules for every kind of source.

    Args:
        table: An Arrow table with at least the required columns.
        columns: Which they are.

    Raises:
        Problem: A row does not say whose it is, or a column is of another type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts, unusable = _texts(table.column(columns.text), columns.text)
    clients = None
    if columns.user_id is None:
        clients = _ids(table.column(columns.client), columns.client)
        empty = pc.index(clients, pa.scalar("", clients.type)).as_py()
        if empty >= 0:
            raise Problem(empty, f"{columns.client!r} must not be empty")
    dates = None
    if columns.date in table.column_names:
        dates = _dates(table.column(columns.date), columns.date)
    return Rows(clients, texts, unusable, dates)


def _ids(column: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _strings(column, name, "a string or an integer", integers=True)
    if column.null_count:
        missing = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
        raise Problem(missing, f"{name!r} must be a string or an integer, but it is null")
    bad = _no_unicode(column)
    if bad.any():
        raise Problem(int(np.argmax(bad)), f"{name!r} must be text that UTF-8 can hold")
    return column


def _texts(column: Any, name: str) -> tuple[Any, Any]:
    """The texts, empty where they are unusable, and where that is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _strings(column, name, "a string", integers=False)
    unusable = pc.is_null(column)
    if (bad := _no_unicode(column)).any():
        unusable = pc.or_(unusable, pa.chunked_array([pa.array(bad)]))
    empty = pa.scalar("", pa.large_string())
    # Masked before anything reads the characters.
    column = pc.if_else(unusable, empty, column)
    unusable = pc.or_(unusable, pc.match_substring(column, "\0"))
    column = pc.if_else(unusable, empty, column)
    return _chunked(column), _chunked(unusable)


def _chunked(column: Any) -> Any:
    import pyarrow as pa

    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _strings(column: Any, name: str, allowed: str, *, integers: bool) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.large_string())
    if integers and pa.types.is_integer(kind):
        column = column.cast(pa.string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not (
        getattr(pa.types, "is_string_view", lambda _: False)(kind)
    ):
        raise Problem(None, f"{name!r} must be {allowed}, but the column holds {kind}")
    # 64-bit offsets: several files together may hold more than 2 GiB of text.
    return column.cast(pa.large_string())


def _no_unicode(column: Any) -> Any:
    """(n,) bool, where the bytes of a string column are no UTF-8: Parquet does not check."""
    import pyarrow as pa

    bad = np.zeros(len(column), dtype=np.bool_)
    try:
        column.validate(full=True)
        return bad
    except pa.ArrowException:
        pass
    for row, value in enumerate(column.cast(pa.large_binary()).to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            bad[row] = True
    return bad


def _dates(column: Any, name: str) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.date32())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _days(column)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise Problem(None, f"{name!r} {_DATE_RULE}, but the column holds {kind}")
    # As bytes, so that one that is no Unicode can be looked at like the others.
    encoded = column.combine_chunks().cast(pa.large_binary()).dictionary_encode()
    parsed = [parse_date(value) for value in encoded.dictionary.to_pylist()]
    return pa.chunked_array([pa.array(parsed, pa.date32()).take(encoded.indices)])


def _days(column: Any) -> Any:
    """Dates or timestamps as days (of UTC where there is a zone), null beyond the years 1 to 9999.

    Arrow's 32-bit days reach the year 5,881,580 and wrap around after that; Python's do not, and
    one such row would take everybody's away.
    """
    import pyarrow as pa

    kind = column.type
    units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    if pa.types.is_date32(kind):
        column, per_day = column.cast(pa.int32()), 1
    else:
        unit = "ms" if pa.types.is_date64(kind) else kind.unit
        column, per_day = column.cast(pa.int64()), 86_400 * units[unit]
    known = ~column.is_null().to_numpy()
    days = column.cast(pa.int64()).fill_null(0).to_numpy() // per_day
    known &= (days >= (date.min - _EPOCH).days) & (days <= (date.max - _EPOCH).days)
    days = np.where(known, days, 0).astype(np.int32)
    return pa.chunked_array([pa.array(days, mask=~known).cast(pa.date32())])


def parse_date(value: object) -> date | None:
    """The day; None where it cannot be read."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        return datetime.fromisoformat(text.strip()).date() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
