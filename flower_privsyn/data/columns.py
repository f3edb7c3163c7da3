"""The columns of a source of rows: which to read, and what may stand in them.

The rules are the same for every kind of source, and judge the rows of all users at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final

import numpy as np

from flower_privsyn.errors import ConfigError, DataError

_EPOCH: Final = date(1970, 1, 1)
_DATE_RULE: Final = "must be an ISO date such as 2025-03-18"
# What a column may be called in a file whose first row could as well be somebody's text.
_NAME: Final = re.compile(r"\w[\w.-]{0,30}(?: [\w.-]{1,20})?")
# What `surrogateescape` makes of bytes that are not UTF-8.
_RAW: Final = re.compile("[\udc80-\udcff]")

#: What the owner of a file is told.
NOT_UTF8: Final = (
    "the text is not UTF-8; save the file as UTF-8, or convert it with "
    "`iconv -f WINDOWS-1252 -t UTF-8`"
)


#: Stands for a value that is no text; no document holds NUL.
UNUSABLE: Final = "\0"

#: Between the texts of several columns that are one document.
BETWEEN_COLUMNS: Final = "\n\n"

#: Between the labels of several columns that are one class.
BETWEEN_LABELS: Final = " | "


class Columns:
    """Which columns to read.

    Args:
        client: Column with the user id.
        text: Column with the text, or several with commas between them, whose texts are joined
            by a blank line.
        date_: Column with the date.
        user_id: The one user of the source, whose rows name nobody; None where they do.
        strict: Whether what a node leaves out in silence is refused, and sentences may name the
            columns of files without a schema: for the owner who looks.
        label: Column with the class of a text, or several with commas between them, whose values
            are joined by " | "; "" for none.

    Raises:
        ConfigError: A name is empty or occurs twice.
    """

    def __init__(
        self,
        client: str,
        text: str,
        date_: str,
        user_id: str | None,
        *,
        strict: bool = False,
        label: str = "",
    ) -> None:
        self.texts = tuple(name.strip() for name in text.split(","))
        self.labels = tuple(name.strip() for name in label.split(",")) if label else ()
        for key, values, given in (
            ("client-column", (client,), client),
            ("text-column", self.texts, text),
            ("label-column", self.labels, label),
        ):
            if not all(values):
                raise ConfigError(
                    f"{key} must be the name of a column, got an empty string."
                    if len(values) == 1
                    else f"{key} must be names of columns with commas between them, got {given!r}."
                )
        if len(set(self.texts)) < len(self.texts):
            raise ConfigError(f"text-column names a column twice, got {text!r}.")
        if len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"label-column names a column twice, got {label!r}.")
        if user_id == "":
            raise ConfigError("user-id must not be empty.")
        self.client = client
        self.date = date_
        self.user_id = user_id
        self.strict = strict

    def of_one_user(self) -> Columns:
        """The same columns of a source that names nobody."""
        texts, labels = ",".join(self.texts), ",".join(self.labels)
        return Columns(self.client, texts, self.date, "somebody", strict=self.strict, label=labels)

    @property
    def required(self) -> tuple[str, ...]:
        """What a source without is refused."""
        return self.texts if self.user_id is not None else (self.client, *self.texts)

    @property
    def wanted(self) -> tuple[str, ...]:
        """What is read where it is there, each once."""
        return tuple(dict.fromkeys((*self.required, self.date, *self.labels)))

    def missing(self, name: str, names: Iterable[str], *, schema: bool) -> str:
        """What to say of a column that is not there: "has no column ...".

        Args:
            name: Of the column.
            names: Of those that are there.
            schema: Whether these are names for sure. What stands in the first row of a file may be
                somebody's text, and is shown to its owner alone. In no case what does not look like
                a name: tables are made of such files.
        """
        names = list(names)
        start = f"has no column {name!r}"
        if not (schema or self.strict) or not all(_NAME.fullmatch(other) for other in names):
            return f"{start} among its {len(names)}; the first row of text must hold their names"
        if near := difflib.get_close_matches(name, names, n=1):
            start += f" (did you mean {near[0]!r}?)"
        start += f"; its columns are {', '.join(map(repr, names))}"
        if name == self.client:
            return (
                f"{start}; name the one that says whose a row is: client-column (--client-column)"
            )
        if name in self.texts:
            return f"{start}; name the one that holds the text: text-column (--text-column)"
        return start

    def cell(self, value: object, place: str) -> str | None:
        """The text of one cell: as it is, None where there is none, UNUSABLE for all that is none.

        Args:
            value: Of a row; bytes that are not UTF-8 are halves of surrogate pairs.
            place: Of the row, for the sentence.

        Raises:
            DataError: The owner looks, and these are other bytes than UTF-8.
        """
        if value is None:
            return None
        if not isinstance(value, str):
            return UNUSABLE
        try:
            value.encode()
        except UnicodeEncodeError:
            if self.strict and _RAW.search(value):
                raise DataError(f"{place}: {NOT_UTF8}.") from None
            return UNUSABLE
        return value


@dataclass
class Rows:
    """The columns of one file as Arrow arrays; of dates and labels some may be null."""

    clients: Any  # string, or None where the source is one user
    texts: Any  # empty where unusable
    unusable: Any  # bool
    dates: Any | None  # date32, nulls allowed; None if there is no such column
    undated: str  # why there is none
    labels: Any | None  # large_string, nulls allowed; None if there is no such column
    unlabelled: str  # why there is none


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

    texts, unusable = _documents(table, columns)
    clients = None
    if columns.user_id is None:
        clients = _ids(table.column(columns.client), columns.client)
        empty = pc.index(clients, pa.scalar("", clients.type)).as_py()
        if empty >= 0:
            raise Problem(empty, f"{columns.client!r} must not be empty")
    dates, undated = None, f"there is no column {columns.date!r}"
    if columns.date in table.column_names:
        try:
            dates = _dates(table.column(columns.date), columns.date)
        except Problem as problem:  # which concerns only those who ask for dates
            undated = problem.rule
    return Rows(clients, texts, unusable, dates, undated, *_labels(table, columns))


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


def _documents(table: Any, columns: Columns) -> tuple[Any, Any]:
    """The documents, empty where they are unusable, and where that is.

    A document of several columns is unusable where one of its texts is, or none is there.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    read = [
        _strings(table.column(name), name, "a string", integers=False) for name in columns.texts
    ]
    parts = [_texts(column, columns) for column in read]
    if len(parts) == 1:
        texts, unusable = parts[0]
        return _chunked(texts), _chunked(unusable)
    between, none = (pa.scalar(text, pa.large_string()) for text in (BETWEEN_COLUMNS, ""))
    together: Any = None
    for column, (texts, bad) in zip(read, parts, strict=True):
        # Whole arrays: the columns may be chunked differently.
        null, bad, texts = (_whole(values) for values in (pc.is_null(column), bad, texts))
        bad = pc.and_(bad, pc.invert(null))
        if together is None:
            together, unusable, absent = texts, bad, null
            continue
        unusable, absent = pc.or_(unusable, bad), pc.and_(absent, null)
        # Not with nulls that are skipped: Arrow 26 drops the rows in which all are null.
        both = pc.binary_join_element_wise(together, texts, between)
        one = pc.if_else(_blank(together), texts, together)
        together = pc.if_else(pc.or_(_blank(together), _blank(texts)), one, both)
    unusable = pc.or_(unusable, absent)
    return _chunked(pc.if_else(unusable, none, together)), _chunked(unusable)


def _labels(table: Any, columns: Columns) -> tuple[Any | None, str]:
    """The class of each text, null where it has none; or None, and why no text has one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns.labels:
        return None, "no label-column is named"
    for name in columns.labels:
        if name not in table.column_names:
            return None, f"there is no column {name!r}"
    parts = []
    for name in columns.labels:
        try:
            column = _whole_numbers(table.column(name))
            column = _strings(column, name, "a string or an integer", integers=True)
        except Problem as problem:  # which concerns only those who ask for classes
            return None, problem.rule
        missing = pc.is_null(column)
        if (bad := _no_unicode(column)).any():
            missing = pc.or_(missing, pa.chunked_array([pa.array(bad)]))
        null = pa.scalar(None, pa.large_string())
        column = pc.if_else(missing, null, column)  # masked before anything reads the characters
        parts.append(_whole(pc.utf8_trim_whitespace(column)))
    between = pa.scalar(BETWEEN_LABELS, pa.large_string())
    together = parts[0]
    for part in parts[1:]:
        together = pc.binary_join_element_wise(together, part, between, null_handling="emit_null")
    return _chunked(together), ""


def _whole_numbers(column: Any) -> Any:
    """Whole numbers that are stored as floats, as integers; null for all other floats.

    One missing value is enough for pandas to store a column of integers so, and it must not take
    everybody's labels away.
    """
    import pyarrow as pa

    if not pa.types.is_floating(column.type):
        return column
    values = column.cast(pa.float64()).to_numpy()
    whole = np.isfinite(values) & (np.abs(values) < 2.0**53)  # beyond, neighbours are the same
    values = np.where(whole, values, 0.0)
    whole &= values == np.floor(values)
    return pa.chunked_array([pa.array(values.astype(np.int64), mask=~whole)])


def _blank(texts: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.equal(pc.utf8_trim_whitespace(texts), pa.scalar("", pa.large_string()))


def _texts(column: Any, columns: Columns) -> tuple[Any, Any]:
    """The texts of one column, empty where they are unusable, and where that is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unusable = pc.is_null(column)
    if (bad := _no_unicode(column)).any():
        if columns.strict:
            raise Problem(int(np.argmax(bad)), NOT_UTF8)
        unusable = pc.or_(unusable, pa.chunked_array([pa.array(bad)]))
    empty = pa.scalar("", pa.large_string())
    # Masked before anything reads the characters.
    column = pc.if_else(unusable, empty, column)
    unusable = pc.or_(unusable, pc.match_substring(column, "\0"))
    return pc.if_else(unusable, empty, column), unusable


def _chunked(column: Any) -> Any:
    import pyarrow as pa

    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _whole(column: Any) -> Any:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _strings(column: Any, name: str, allowed: str, *, integers: bool) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if _is_nothing(column):
        return pa.chunked_array([pa.nulls(len(column), pa.large_string())])
    if integers and pa.types.is_integer(kind):
        column = column.cast(pa.string())
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not (
        getattr(pa.types, "is_string_view", lambda _: False)(kind)
    ):
        said = f"{name!r} must be {allowed}, but the column holds {kind}"
        if integers and pa.types.is_floating(kind):
            # What pandas makes of whole numbers where one is missing: 7 would be "7.0".
            said += "; of a DataFrame: frame[column].astype('Int64').astype(str)"
        raise Problem(None, said)
    # 64-bit offsets: several files together may hold more than 2 GiB of text.
    return column.cast(pa.large_string())


def _is_nothing(column: Any) -> bool:
    """Whether a column holds no value at all.

    pandas stores such a one as floats, NaN all of them, and one user's value is enough for it to
    have another type: that must not decide whether everybody's rows are read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(column.type):
        return True
    if not pa.types.is_floating(column.type):
        return False
    return bool(pc.all(pc.is_null(column, nan_is_null=True)).as_py())


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
    if _is_nothing(column):
        return pa.chunked_array([pa.nulls(len(column), pa.date32())])
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
    """The day: of UTC for a moment with a zone, of its own words for a text; None for no day."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    try:
        if isinstance(value, datetime):
            return (value if value.tzinfo is None else value.astimezone(UTC)).date()
        if isinstance(value, date):
            return value
        text = value.decode() if isinstance(value, bytes) else value
        return datetime.fromisoformat(text.strip()).date() if isinstance(text, str) else None
    # Also of pandas: NaT is a datetime without a day, and its years go beyond Python's.
    except (ValueError, OverflowError, NotImplementedError):
        return None


def parse_label(value: object) -> str | None:
    """A class as text; None for what names none. A whole number is one also as 3.0."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2.0**53:
        return str(int(value))
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:  # of more digits than Python writes
            return None
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value
