"""From a file, a folder or a data set to the users it holds."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.data import bounded, flat_json
from flower_privsyn.data.users import Users, parse_cutoff
from flower_privsyn.errors import ConfigError, DataError, MissingExtraError
from flower_privsyn.files import located
from flower_privsyn.models.hub import hub_unreachable
from flower_privsyn.privacy import quarantine

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_EPOCH: Final = date(1970, 1, 1)
_DATE_RULE: Final = "must be an ISO date such as 2025-03-18"


def load_users(
    source: Any,
    *,
    client_column: str = "client_id",
    text_column: str = "text",
    date_column: str = "date",
    newer_than: date | str | None = None,
    split: str = "train",
    user_id: str | None = None,
) -> Users:
    """Read the users of a node and everything they wrote.

    A row whose text is empty (or white space) counts for its user but is no document: the user
    stays in the roster. So does one whose text is unusable: no string, missing, or not Unicode
    (half a surrogate pair, bytes that are not UTF-8, NUL). A date that cannot be read, or lies
    outside of the years 1 to 9999, is an unknown one. What one user wrote must not decide about the
    others, nor whether there are any: files in which no row has a usable text, or a date where
    `newer_than` asks for one, are read, and `check_documents` names them to their owner. A row that
    does not say whose it is can be laid at nobody's door: it is the file's fault, and refused. Rows
    of one user may be anywhere, in several files of a folder too.

    Args:
        source: A ``.jsonl``, ``.json`` (one object per line), ``.jsonl.gz``, ``.json.gz`` or
            ``.parquet`` file; a folder of them; a folder written by ``Dataset.save_to_disk``; a
            data set name on the Hugging Face hub (``owner/name``); or a ``datasets.Dataset``,
            such as a flwr-datasets partition.
        client_column: Column with the user id, strings or integers.
        text_column: Column with the text.
        date_column: Column with the date (ISO string, date or timestamp); may be absent.
        newer_than: Keep only documents dated after this day (``date`` or ``YYYY-MM-DD``).
        split: Which split of a data set that has several.
        user_id: The source is one user with this id, and ``client_column`` is not read: for
            partitions that are a person.

    Raises:
        ConfigError: If an argument is out of range.
        DataError: If the source cannot be found or read or has no such column; the sentence names
            the file, the line or row and the column, and never quotes what stands there.
        MissingExtraError: If a data set is asked for and ``datasets`` is not installed.
    """
    cutoff = None if newer_than is None else parse_cutoff(newer_than)
    columns = _Columns(client_column, text_column, date_column, user_id)
    if isinstance(source, str | os.PathLike):
        users = _from_location(os.fspath(source), columns, split)
    else:
        users = _from_dataset(source, columns, split)
    return users if cutoff is None else users.newer_than(cutoff)


def load_configured(*configurations: Mapping[str, Any]) -> Users:
    """Read the users that a configuration names.

    Args:
        configurations: Looked up in order; the first value that is not empty counts. Keys: `data`
            (what `load_users` takes; a path is relative to where the command was typed),
            `client-column`, `text-column`, `date-column`.

    Raises:
        DataError: None of them has `data`, or the users cannot be read.
    """

    def setting(key: str, default: str = "") -> str:
        return str(next(filter(None, (c.get(key) for c in configurations)), default))

    source = setting("data")
    if not source:
        raise DataError(
            "no data: set `data` to a file of users in the node's configuration "
            "(--node-config 'data=\"/path/users.jsonl\"') or in the run's"
        )
    return load_users(
        located(source),
        client_column=setting("client-column", "client_id"),
        text_column=setting("text-column", "text"),
        date_column=setting("date-column", "date"),
    )


class _Columns:
    """Which columns to read."""

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
        return (self.text,) if self.user_id is not None else (self.client, self.text)

    @property
    def wanted(self) -> tuple[str, ...]:
        return (*self.required, self.date)


# ---- where it is -------------------------------------------------------------------------------


def _from_location(location: str, columns: _Columns, split: str) -> Users:
    path = Path(location).expanduser()
    if path.is_dir():
        if (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
            return _from_dataset(_load_from_disk(path), columns, split, where=str(path))
        files = sorted(item for item in path.iterdir() if _suffix(item) and item.is_file())
        if not files:
            raise DataError(f"{path} holds no data file ({', '.join(SUFFIXES)}).")
        return _grouped([_read_file(item, columns) for item in files], columns)
    if path.exists():
        if not _suffix(path):
            raise DataError(
                f"{path} has the suffix {path.suffix!r}, which is none of {', '.join(SUFFIXES)}."
            )
        return _grouped([_read_file(path, columns)], columns)
    if _suffix(path) or not _HUB_NAME.fullmatch(location):
        raise DataError(f"{path} does not exist.")
    return _from_dataset(_load_from_hub(location, split), columns, split, where=location)


def _suffix(path: Path) -> str | None:
    name = path.name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        if getattr(error, "name", None) != "datasets":
            # Installed but broken: "install it" would send people the wrong way.
            raise DataError(f"The datasets library cannot be imported ({error}).") from error
        raise MissingExtraError(
            "Reading a Hugging Face data set needs the datasets library: "
            "pip install 'flower-privsyn[client]'."
        ) from None
    return datasets


def _load_from_disk(path: Path) -> Any:
    try:
        return _datasets().load_from_disk(str(path))
    except MissingExtraError:
        raise
    except Exception as error:
        raise DataError(
            f"{path} is not a complete save_to_disk folder ({type(error).__name__})."
        ) from None


def _load_from_hub(name: str, split: str) -> Any:
    datasets = _datasets()
    unreachable = hub_unreachable("HF_DATASETS_OFFLINE")
    shows_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with _offline(datasets) if unreachable else contextlib.nullcontext():
            return datasets.load_dataset(name, split=split)
    except Exception as error:
        if unreachable:
            raise DataError(
                f"{name} is neither a file nor in the data set cache, and the hub cannot be "
                f"reached ({unreachable})."
            ) from None
        raise DataError(
            f"{name} (split {split!r}) is not a file, and the hub gives no such data set "
            f"({type(error).__name__})."
        ) from None
    finally:
        if shows_bars:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Only what an earlier run has downloaded: without a network the library retries for long.

    Both libraries read the environment when they are imported, and these names after that.
    """
    from huggingface_hub import constants

    before = (datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE)
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


# ---- what is in it -----------------------------------------------------------------------------


class _Rows:
    """Three columns of one file: ids, texts and dates as Arrow arrays, without nulls but dates."""

    def __init__(self, clients: Any, texts: Any, unusable: Any, dates: Any | None) -> None:
        self.clients = clients  # string, or None where the source is one user
        self.texts = texts  # empty where unusable
        self.unusable = unusable  # bool
        self.dates = dates  # date32, nulls allowed; None if there is no such column


class _Problem(Exception):  # noqa: N818 - a signal, turned into a DataError with its place
    """A row breaks a rule; ``row`` counts from 0, or is None for the whole source."""

    def __init__(self, row: int | None, rule: str) -> None:
        super().__init__(rule)
        self.row = row
        self.rule = rule


def _read_file(path: Path, columns: _Columns) -> _Rows:
    try:
        if _suffix(path) == ".parquet":
            return _read_parquet(path, columns)
        return _read_json_lines(path, columns)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path} cannot be read ({reason}).") from None


def _read_parquet(path: Path, columns: _Columns) -> _Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as handle:  # a missing permission shows here, with its reason
        if not handle.read(1):
            raise DataError(f"{path} is empty.")
    try:
        names = pq.read_schema(path).names
        _check_columns(names, columns, str(path))
        table = bounded.read_parquet(path, [name for name in columns.wanted if name in names])
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a Parquet file ({type(error).__name__}).") from None
    return _from_table(table, columns, str(path))


def _check_columns(names: Sequence[str], columns: _Columns, where: str) -> None:
    for name in columns.required:
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r}; its columns are {', '.join(map(repr, names))}."
            )


def _from_table(table: Any, columns: _Columns, where: str) -> _Rows:
    if table.num_rows == 0:
        raise DataError(f"{where} holds no rows.")
    try:
        return _typed(table, columns)
    except _Problem as problem:
        place = where if problem.row is None else f"{where} row {problem.row + 1}"
        raise DataError(f"{place}: {problem.rule}.") from None


def _typed(table: Any, columns: _Columns) -> _Rows:
    """Check types, nulls and characters; the same rules for every kind of source."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts, unusable = _texts(table.column(columns.text), columns.text)
    clients = None
    if columns.user_id is None:
        clients = _ids(table.column(columns.client), columns.client)
        empty = pc.index(clients, pa.scalar("", clients.type)).as_py()
        if empty >= 0:
            raise _Problem(empty, f"{columns.client!r} must not be empty")
    dates = None
    if columns.date in table.column_names:
        dates = _dates(table.column(columns.date), columns.date)
    return _Rows(clients, texts, unusable, dates)


def _ids(column: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _strings(column, name, "a string or an integer", integers=True)
    if column.null_count:
        missing = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
        raise _Problem(missing, f"{name!r} must be a string or an integer, but it is null")
    bad = _no_unicode(column)
    if bad.any():
        raise _Problem(int(np.argmax(bad)), f"{name!r} must be text that UTF-8 can hold")
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
        raise _Problem(None, f"{name!r} must be {allowed}, but the column holds {kind}")
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
        raise _Problem(None, f"{name!r} {_DATE_RULE}, but the column holds {kind}")
    # As bytes, so that one that is no Unicode can be looked at like the others.
    encoded = column.combine_chunks().cast(pa.large_binary()).dictionary_encode()
    parsed = [_parse_date(value) for value in encoded.dictionary.to_pylist()]
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


def _parse_date(value: object) -> date | None:
    """The day; None where it cannot be read."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
        return datetime.fromisoformat(text.strip()).date() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None


# ---- JSON lines --------------------------------------------------------------------------------


def _read_json_lines(path: Path, columns: _Columns) -> _Rows:
    """Arrow's parser where every line is as it should be, else line by line to name the bad one."""
    data = bounded.read_bytes(path)
    if not data or data.isspace():
        raise DataError(f"{path} is empty.")
    table = _parse_fast(data, columns)
    if table is not None:
        try:
            return _typed(table, columns)
        except (_Problem, UnicodeDecodeError):
            pass  # the slow way finds the line, or an id that is an integer here and there
    return _typed(_parse_by_line(path, data, columns), columns)


def _parse_fast(data: bytearray, columns: _Columns) -> Any | None:
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


def _parse_by_line(path: Path, data: bytearray, columns: _Columns) -> Any:
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
        dates.append(_parse_date(row.get(columns.date)))
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


# ---- data sets ---------------------------------------------------------------------------------


def _from_dataset(
    source: Any, columns: _Columns, split: str, *, where: str = "the data set"
) -> Users:
    if isinstance(source, dict):  # datasets.DatasetDict
        if split not in source:
            raise DataError(
                f"{where} has no split {split!r}; its splits are {', '.join(map(repr, source))}."
            )
        source = source[split]
    if not hasattr(source, "column_names") or not hasattr(source, "with_format"):
        raise DataError(
            "source must be a file, a folder, a data set name or a datasets.Dataset, "
            f"got {type(source).__name__}."
        )
    if not hasattr(source, "__len__"):
        raise DataError(f"{where} is a streaming data set: load it without streaming=True.")
    names = list(source.column_names)
    _check_columns(names, columns, where)
    present = [name for name in columns.wanted if name in names]
    return _grouped([_from_table(_arrow(source, present), columns, where)], columns)


def _arrow(dataset: Any, names: list[str]) -> Any:
    """The named columns as an Arrow table, in the order of the data set.

    Arrow all the way: the library's own columns are read row by row, seconds per 100,000 rows,
    and its Arrow format gathers the rows of a shuffled data set batch by batch.
    """
    indices = getattr(dataset, "_indices", None)
    if indices is None or not hasattr(indices, "column"):
        return dataset.select_columns(names).with_format("arrow")[:]
    import pyarrow as pa

    rows = indices.column(0).combine_chunks()
    columns = []
    for name in names:
        column = dataset.data.column(name)
        if pa.types.is_string(column.type):
            column = column.cast(pa.large_string())  # the chunks together may exceed 2 GiB
        columns.append(pa.chunked_array([column.combine_chunks().take(rows)]))
    return pa.table(columns, names=names)


# ---- by user -----------------------------------------------------------------------------------


def _grouped(parts: list[_Rows], columns: _Columns) -> Users:
    """Bring the rows of each user together, in order of first appearance."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.chunked_array([c for part in parts for c in part.texts.chunks], pa.large_string())
    if columns.user_id is not None:
        user_ids = [columns.user_id]
        codes = np.zeros(len(texts), dtype=np.int64)
    else:
        clients = pa.chunked_array(
            [c for part in parts for c in part.clients.chunks], pa.large_string()
        )
        encoded = clients.combine_chunks().dictionary_encode()
        user_ids = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy().astype(np.int64)
    unusable = np.concatenate([part.unusable.to_numpy() for part in parts])
    if unusable.any():
        owners = np.unique(codes[unusable]).tolist()
        quarantine.note((user_ids[user] for user in owners), records=int(unusable.sum()))
    filled = pc.not_equal(pc.utf8_trim_whitespace(texts), pa.scalar("", pa.large_string()))
    rows = np.flatnonzero(filled.to_numpy())
    order = rows[np.argsort(codes[rows], kind="stable")]  # (n,)
    dates = None
    if any(part.dates is not None for part in parts):
        chunks: list[Any] = []
        for part in parts:
            if part.dates is None:
                chunks.append(pa.nulls(len(part.texts), pa.date32()))
            else:
                chunks.extend(part.dates.chunks)
        dates = pa.chunked_array(chunks, pa.date32()).take(pa.array(order)).to_pylist()
    return Users(
        user_ids=tuple(user_ids),
        texts=texts.combine_chunks().take(pa.array(order)).to_pylist(),
        owners=codes[order],
        dates=dates,
    )
