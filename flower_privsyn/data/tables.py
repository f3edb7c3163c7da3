"""Tables in memory as sources of rows: of Arrow, of pandas, and of whatever speaks to Arrow."""

from __future__ import annotations

from typing import Any, Final

from flower_privsyn.data.columns import Columns, Rows, parse_date, parse_label
from flower_privsyn.data.data_sets import check_columns, rows_of_table
from flower_privsyn.errors import DataError

#: How a table says that Arrow may read it: its PyCapsule interface.
_ARROW: Final = ("__arrow_c_stream__", "__arrow_c_array__")


def is_table(source: Any) -> bool:
    """Whether this is a table in memory, and no data set, which says more than its columns."""
    if hasattr(source, "with_format"):
        return False
    return _is_pandas(source) or any(hasattr(source, name) for name in _ARROW)


def _is_pandas(source: Any) -> bool:
    kind = type(source)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def rows_of_memory(source: Any, columns: Columns, *, where: str) -> Rows:
    """The rows of a table, under the rules of files.

    Args:
        source: See `is_table`. A stream of batches is read to its end.
        columns: Which to read; others may hold anything.
        where: The table is, for sentences.

    Raises:
        DataError: It has no such column, one twice, one that Arrow has no type for, or no rows;
            or a row does not say whose it is.
    """
    import pyarrow as pa

    if _is_pandas(source):
        names = list(source.columns)
        column_of = source.__getitem__
    else:
        try:
            source = pa.table(source)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"{where} is none that Arrow reads ({type(error).__name__}).") from None
        names = source.column_names
        column_of = source.column
    check_columns(names, columns, where)
    present = [name for name in columns.wanted if name in names]
    for name in present:
        if names.count(name) > 1:
            raise DataError(f"{where} has {names.count(name)} columns {name!r}; one must be left.")
    made = [_arrow(column_of(name), name, columns, where) for name in present]
    return rows_of_table(pa.table(made, names=present), columns, where)


def _arrow(values: Any, name: str, columns: Columns, where: str) -> Any:
    """A column as one of Arrow, value by value where it may hold several types, as in pandas.

    Of objects Arrow takes a type that suits them all, bytes for texts among which there are some:
    one user's value would decide how everybody's are read.
    """
    import pyarrow as pa

    if isinstance(values, pa.ChunkedArray):
        if getattr(pa.types, "is_string_view", lambda _: False)(values.type):
            return values.cast(pa.large_string())
        return values
    try:
        made = pa.array(values, from_pandas=True)
        if values.dtype != object or _is_usual(made.type, name, columns):
            return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # what Arrow says may quote a value
    known = [
        None if missing else value for value, missing in zip(values, values.isna(), strict=True)
    ]
    if name == columns.date:
        return pa.array(map(parse_date, known), pa.date32())
    if name in columns.texts:
        places = (f"{where} row {number}" for number in range(1, len(known) + 1))
        return pa.array(map(columns.cell, known, places), pa.large_string())
    return pa.array(map(parse_label, known), pa.large_string())


def _is_usual(kind: Any, name: str, columns: Columns) -> bool:
    """Whether a column of this name is read as it is when all of it is of a type."""
    import pyarrow.types as types

    if types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind):
        return True
    if name == columns.date:
        return bool(types.is_date(kind) or types.is_timestamp(kind))
    return name not in columns.texts and bool(types.is_integer(kind))
