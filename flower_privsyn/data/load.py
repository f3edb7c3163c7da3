"""From a file, a folder or a data set to the users it holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from flower_privsyn.data import data_sets, folders, formats, tables, text_files
from flower_privsyn.data.columns import Columns, Rows
from flower_privsyn.data.delimited import read_delimited
from flower_privsyn.data.gathered import Gathered
from flower_privsyn.data.json_rows import read_json
from flower_privsyn.data.users import Users, parse_cutoff
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import expanded, located

#: Rows of a Parquet file that are in memory together.
_PART_ROWS: Final = 2**16


def load_users(
    source: Any,
    *,
    client_column: str = "client_id",
    text_column: str = "text",
    date_column: str = "date",
    label_column: str = "",
    newer_than: date | str | None = None,
    split: str = "train",
    user_id: str | None = None,
    strict: bool = False,
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
        source: A file of JSON lines, of a JSON array of objects, CSV or TSV (all also packed by
            gzip) or Parquet, told by its name; a folder of them, or of
            folders of them (`folders`); a folder of ``.txt`` files (`text_files`); a folder written
            by ``Dataset.save_to_disk``; a data set on the Hugging Face hub (``owner/name``,
            ``owner/name:config:split``) or in a folder (``folder:config:split``); a
            ``datasets.Dataset``, such as a flwr-datasets partition; or a table in memory: a pandas
            ``DataFrame``, an Arrow ``Table``, or what else Arrow can read
            (``__arrow_c_stream__``).
        client_column: Column with the user id, strings or integers.
        text_column: Column with the text, or several with commas between them, whose texts are
            joined by a blank line.
        date_column: Column with the date (ISO string, date or timestamp); may be absent.
        label_column: Column with the class of a text (a string, an integer or a data set's class
            label), or several with commas between them, whose values are joined by " | "; may be
            absent. Empty: labels are not read.
        newer_than: Keep only documents dated after this day (``date`` or ``YYYY-MM-DD``).
        split: Which split of a data set that has several and whose name names none.
        user_id: The source is one user with this id, and ``client_column`` is not read: for
            partitions that are a person.
        strict: For the owner who looks, never for a node that answers: also refuse a source
            without a usable text, one whose texts are numbers, and bytes that are not UTF-8.

    Raises:
        ConfigError: If an argument is out of range.
        DataError: If the source cannot be found or read or has no such column; the sentence names
            the file, the line or row and the column, and never quotes what stands there.
        MissingExtraError: If a data set is asked for and ``datasets`` is not installed.
    """
    cutoff = None if newer_than is None else parse_cutoff(newer_than)
    columns = Columns(
        client_column, text_column, date_column, user_id, strict=strict, label=label_column
    )
    location = _name_of(source)
    gathered = Gathered(location, user_id=user_id)
    _read(source, columns, split, into=gathered)
    users = gathered.users()
    if strict:
        try:
            users.check_documents()
        except DataError as error:
            raise DataError(f"{location}: {error}") from None
    return users if cutoff is None else users.newer_than(cutoff)


def load_configured(
    *configurations: Mapping[str, Any], strict: bool = False, labels: bool = False
) -> Users:
    """Read the users that a configuration names.

    Args:
        configurations: Looked up in order; the first value that is not empty counts. Keys: `data`
            (what `load_users` takes; a path is relative to where the command was typed),
            `client-column`, `text-column`, `date-column`, `label-column`.
        strict: As in `load_users`.
        labels: Whether the classes of documents are read too, from `label-column`: for those who
            ask for classes.

    Raises:
        DataError: None of them has `data`, or the users cannot be read.
    """
    setting = _settings(configurations)
    return load_users(
        _configured(setting("data")),
        client_column=setting("client-column", "client_id"),
        text_column=setting("text-column", "text"),
        date_column=setting("date-column", "date"),
        label_column=setting("label-column", "label") if labels else "",
        strict=strict,
    )


def gather_configured(
    *configurations: Mapping[str, Any], labels: bool, node: int, nodes: int, most_bytes: int
) -> Gathered:
    """Read the users that a configuration names, to be dealt to nodes.

    Of a Parquet file a row group is in memory at a time; a file of another kind, all of it while it
    is read.

    Args:
        configurations: As in `load_configured`.
        labels: As in `load_configured`.
        node: Whose users are wanted first, in 0..nodes - 1.
        nodes: How many there are.
        most_bytes: Of documents that are kept, of as many nodes as that allows.

    Raises:
        DataError: None of them has `data`, or the users cannot be read.
    """
    setting = _settings(configurations)
    source = _configured(setting("data"))
    columns = Columns(
        setting("client-column", "client_id"),
        setting("text-column", "text"),
        setting("date-column", "date"),
        None,
        label=setting("label-column", "label") if labels else "",
    )
    gathered = Gathered(source, nodes=nodes, first=node, most_bytes=most_bytes)
    _read(source, columns, "train", into=gathered)
    return gathered


def _settings(configurations: Sequence[Mapping[str, Any]]) -> Callable[..., str]:
    """From a key, and what stands for it where nobody has one, to the first value that counts."""

    def setting(key: str, default: str = "") -> str:
        return str(next(filter(None, (c.get(key) for c in configurations)), default))

    return setting


def _configured(source: str) -> str:
    """What `data` names."""
    if not source:
        raise DataError(
            "no data: set `data` to a file of users in the node's configuration "
            "(--node-config 'data=\"/path/users.jsonl\"') or in the run's"
        )
    try:
        return _located(source)
    except ConfigError as error:
        raise ConfigError(f"data = {error}") from None


def _read(source: Any, columns: Columns, split: str, *, into: Gathered) -> None:
    """Take in all rows of a source."""
    try:
        if isinstance(source, str | os.PathLike):
            parts = _from_location(os.fspath(source), columns, split)
        elif tables.is_table(source):
            parts = iter([tables.rows_of_memory(source, columns, where=_name_of(source))])
        else:
            parts = _from_dataset(source, columns, split)
        for part in parts:
            into.add(part)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        named = error.filename or _name_of(source)
        raise DataError(f"{named} cannot be read ({reason}).") from None


# ---- where it is -------------------------------------------------------------------------------


def _name_of(source: Any) -> str:
    """What sentences call a source."""
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return "the table" if tables.is_table(source) else "the data set"


def _located(source: str) -> str:
    """A path as the user meant it; also that of a data set in a folder, folder:config:split."""
    whole = located(source)
    if ":" not in source or whole != source:
        return whole
    folder, _, rest = source.partition(":")
    return f"{located(folder)}:{rest}"


def _from_location(location: str, columns: Columns, split: str) -> Iterator[Rows]:
    path = expanded(location)
    if path.is_dir():
        if data_sets.is_saved(path):
            dataset = data_sets.from_disk(path)
            return _from_dataset(dataset, columns, split, where=str(path))
        return _read_folder(path, columns)
    if path.exists():
        return _read_file(path, columns)
    folder, colon, rest = location.partition(":")
    if colon and expanded(folder).is_dir():
        config, _, named = rest.partition(":")
        if data_sets.is_saved(expanded(folder)):
            if config not in ("", "default"):
                raise DataError(
                    f"{folder} is a save_to_disk folder, which has no configurations, got "
                    f"{config!r}: name {folder}::{named or split}"
                )
            saved = data_sets.from_disk(expanded(folder))
            return _from_dataset(saved, columns, named or split, where=location)
        dataset = data_sets.from_folder(expanded(folder), config or None, named or split)
    elif formats.suffix_of(path) or not data_sets.is_hub_name(location):
        raise DataError(f"{path} does not exist.")
    else:
        dataset = data_sets.from_hub(location, split)
    return _from_dataset(dataset, columns, split, where=location)


def kind_of(source: str) -> str:
    """What `data` names, in words.

    Args:
        source: As in a configuration; something that has been read.
    """
    path = expanded(_located(source))
    if path.is_file():
        return formats.format_of(path)
    if not path.is_dir():
        return "a data set"
    if data_sets.is_saved(path):
        return "a save_to_disk folder"
    files, texts = folders.files_of(path)
    return f"a folder of {len(files):,} files" if files else f"a folder of {len(texts):,} texts"


def _from_dataset(
    source: Any, columns: Columns, split: str, where: str = "the data set"
) -> Iterator[Rows]:
    dataset = data_sets.split_of(source, split, where=where)
    yield data_sets.rows_of(dataset, columns, where=where)


# ---- what is in it -----------------------------------------------------------------------------


def _read_folder(path: Path, columns: Columns) -> Iterator[Rows]:
    """The rows of all files of a folder."""
    files, texts = folders.files_of(path)
    if files:
        yield from folders.read_folder(path, files, columns, _read_file)
        return
    if not texts:
        raise DataError(f"{path} holds no data file; what is read: {formats.READ}.")
    yield text_files.read_text_files(path, texts, columns)


def _read_file(path: Path, columns: Columns) -> Iterator[Rows]:
    match formats.format_of(path):
        case "JSON":
            yield read_json(path, columns)
        case "Parquet":
            yield from _read_parquet(path, columns)
        case _:
            yield read_delimited(path, columns)


def _read_parquet(path: Path, columns: Columns) -> Iterator[Rows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            data_sets.check_columns(names, columns, str(path))
            if not file.metadata.num_rows:
                raise formats.EmptyError(f"{path} holds no rows.")
            present = [name for name in columns.wanted if name in names]
            for batch in file.iter_batches(batch_size=_PART_ROWS, columns=present):
                table = pa.Table.from_batches([batch])
                yield data_sets.rows_of_table(table, columns, str(path), before=done)
                done += table.num_rows
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a Parquet file ({type(error).__name__}).") from None
