"""A folder of data files: which of them are read, and what the names of their folders say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from flower_privsyn.data import formats, text_files
from flower_privsyn.data.columns import (
    BETWEEN_LABELS,
    UNUSABLE,
    Columns,
    Rows,
    parse_date,
    parse_label,
    typed,
)
from flower_privsyn.errors import DataError

ReadFile = Callable[[Path, Columns], Iterator[Rows]]
"""From a file and its columns to its rows."""

#: What Spark and Hive call a folder of rows without a value.
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"

#: Where a table says which of its files count, and who writes such ones.
_JOURNALS: Final = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}


def files_of(folder: Path) -> tuple[list[Path], list[tuple[str, Path]]]:
    """The data files of a folder in the order of their names, or else its texts.

    Where it holds neither, the data files of the folders in it, as Spark writes them; those come
    before texts where a folder says what stands in a column (`read_folder`). Files that
    begin with a dot are passed over, and folders that begin with a dot or an underscore: these are
    what programs leave of their own.

    Args:
        folder: That is read.

    Returns:
        Data files, and texts as by `text_files`; one of the two is empty.

    Raises:
        DataError: As `text_files`; or the folder is a table that keeps rows which were deleted.
        OSError: A folder cannot be read.
    """
    for name, writer in _JOURNALS.items():
        if (folder / name).is_dir():
            # People who had their text deleted would be asked about it.
            raise DataError(
                f"{folder} is a table of {writer} ({name}), whose files also hold rows that were "
                "deleted or changed: write what it holds now as Parquet, and name that folder."
            )
    if own := [path for path in sorted(folder.iterdir()) if _is_data(path)]:
        return own, []
    below = list(_below(folder))
    if any(_named(folder, file) for file in below):
        # A text in one user's folder of a table would else be all that is read, of nobody but them.
        return below, []
    texts = text_files.text_files(folder)
    return ([], texts) if texts else (below, [])


def _is_data(path: Path) -> bool:
    named = not path.name.startswith(".") and formats.suffix_of(path) is not None
    return named and path.is_file()


def _below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if not path.name.startswith((".", "_")):
                yield from _below(path)
        elif _is_data(path):
            yield path


def read_folder(
    folder: Path, files: list[Path], columns: Columns, read: ReadFile
) -> Iterator[Rows]:
    """The rows of all files of a folder; a part without rows is passed over.

    Of a part whose folder names its user, whatever is wrong with it but for its columns concerns
    that user alone, who is on the roster without rows as well.

    A folder called `date=2025-03-18` says what stands in that column of all rows below it, as it
    does to Spark, Hive and Arrow: whose they are, of when, of which class.

    Args:
        folder: That is read.
        files: Of it, by `files_of`; at least one.
        columns: Which to read.
        read: Reads one of them.

    Raises:
        DataError: No file has rows, or one cannot be read, or a folder names nobody.
        OSError: A file cannot be read.
    """
    empty = 0
    for file in files:
        try:
            yield from _read_part(file, _named(folder, file), columns, read)
        except formats.EmptyError:
            empty += 1
    if empty == len(files):
        raise DataError(f"{folder} holds no rows: all of its {len(files):,} data files are empty.")


def _named(folder: Path, file: Path) -> dict[str, str | None]:
    """What the folders between say: by column, None for no value."""
    named: dict[str, str | None] = {}
    for part in file.relative_to(folder).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            value = unquote(value, errors="surrogateescape")
            named[unquote(name)] = None if value == _NULL else value
    return named


def _read_part(
    file: Path, named: Mapping[str, str | None], columns: Columns, read: ReadFile
) -> Iterator[Rows]:
    import pyarrow as pa

    def same(value: Any, kind: Any, rows: Rows) -> Any:
        return pa.chunked_array([pa.array([value] * len(rows.texts), kind)])

    client = None
    if columns.user_id is None and columns.client in named:
        client = named[columns.client]
        if not client or columns.cell(client, str(file)) == UNUSABLE:
            raise DataError(
                f"{file} lies in a folder that names no {columns.client!r}, so nobody knows whose "
                "its rows are."
            )
    whole = read(file, columns) if client is None else _of_one(file, columns.of_one_user(), read)
    for rows in whole:
        if client is not None:
            rows.clients = same(client, pa.large_string(), rows)
            # One user's file does not say of a node whether there are dates and labels at all.
            if rows.dates is None:
                rows.dates = same(None, pa.date32(), rows)
            if columns.labels and rows.labels is None:
                rows.labels = same(None, pa.large_string(), rows)
        if columns.date in named:
            rows.dates = same(parse_date(named[columns.date]), pa.date32(), rows)
        if columns.labels and all(name in named for name in columns.labels):
            values = [parse_label(named[name]) for name in columns.labels]
            known = [value.strip() for value in values if value is not None]
            label = BETWEEN_LABELS.join(known) if len(known) == len(values) else None
            rows.labels = same(label, pa.large_string(), rows)
        yield rows


def _of_one(file: Path, columns: Columns, read: ReadFile) -> Iterator[Rows]:
    """The rows of a file that is one user's; one without a document where it has no readable ones.

    What one user wrote decides what is in such a file, its types and quotes included. Were it
    refused or passed over, that would decide about a node's other users, and about their number.
    """
    try:
        yield from read(file, columns)
    except formats.EmptyError:
        yield _no_document(columns, "")
    except formats.ColumnError:
        raise  # of a schema, as of files of several users
    except DataError:
        if columns.strict:
            raise
        yield _no_document(columns, None)  # which counts as unusable


def _no_document(columns: Columns, text: str | None) -> Rows:
    import pyarrow as pa

    return typed(
        pa.table({name: pa.array([text], pa.large_string()) for name in columns.texts}), columns
    )
