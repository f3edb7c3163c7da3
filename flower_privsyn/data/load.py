"""From a file, a folder or a data set to the users it holds."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.data import bounded
from flower_privsyn.data.columns import Columns, Problem, Rows, typed
from flower_privsyn.data.json_lines import read_json_lines
from flower_privsyn.data.users import Users, parse_cutoff
from flower_privsyn.errors import DataError, MissingExtraError
from flower_privsyn.files import located
from flower_privsyn.models.hub import hub_unreachable
from flower_privsyn.privacy import quarantine

SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


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
    columns = Columns(client_column, text_column, date_column, user_id)
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


# ---- where it is -------------------------------------------------------------------------------


def _from_location(location: str, columns: Columns, split: str) -> Users:
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


def _read_file(path: Path, columns: Columns) -> Rows:
    try:
        if _suffix(path) == ".parquet":
            return _read_parquet(path, columns)
        return read_json_lines(path, columns)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{path} cannot be read ({reason}).") from None


def _read_parquet(path: Path, columns: Columns) -> Rows:
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


def _check_columns(names: Sequence[str], columns: Columns, where: str) -> None:
    for name in columns.required:
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r}; its columns are {', '.join(map(repr, names))}."
            )


def _from_table(table: Any, columns: Columns, where: str) -> Rows:
    if table.num_rows == 0:
        raise DataError(f"{where} holds no rows.")
    try:
        return typed(table, columns)
    except Problem as problem:
        place = where if problem.row is None else f"{where} row {problem.row + 1}"
        raise DataError(f"{place}: {problem.rule}.") from None


# ---- data sets ---------------------------------------------------------------------------------


def _from_dataset(
    source: Any, columns: Columns, split: str, *, where: str = "the data set"
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


def _grouped(parts: list[Rows], columns: Columns) -> Users:
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
