"""From a file, a folder or a data set to the users it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn.checks import raised_as
from flower_privsyn.data import data_sets, read
from flower_privsyn.data.columns import Cells, Columns
from flower_privsyn.data.users import Gathered, Users
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import user_path

#: 600 speakers, of public records, who come with the package.
SAMPLE: Final = Path(__file__).parent / "sample" / "users.jsonl"


def load_users(
    source: Any,
    *,
    client_column: str = "client_id",
    text_column: str = "text",
    date_column: str = "date",
    label_column: str = "",
    strict: bool = False,
) -> Users:
    """Read the users of a node and everything they wrote.

    A row whose text is empty (or white space) counts for its user but is no document: the user
    stays in the roster. So does one whose text is unusable: no string, missing, or not Unicode
    (half a surrogate pair, bytes that are not UTF-8, NUL). A date that cannot be read, or lies
    outside of the years 1 to 9999, is an unknown one. What one user wrote must not decide about the
    others, nor whether there are any: files in which no row has a usable text, or a date where
    a run asks for one, are read, and `check_documents` names them to their owner. A row that
    does not say whose it is can be laid at nobody's door: it is the file's fault, and refused. Rows
    of one user may be anywhere, in several files of a folder too.

    Args:
        source: A file of JSON lines, of a JSON array of objects, CSV or TSV (all also packed by
            gzip) or Parquet, told by its name; a folder of them; a folder of ``.txt`` files, each
            of which is a user, or of folders of them, each of which is one; a folder written by
            ``Dataset.save_to_disk``; a data set on the Hugging Face hub (``owner/name``,
            ``owner/name:config:split``); a ``datasets.Dataset``, such as a flwr-datasets
            partition; or a table in memory: a pandas ``DataFrame``, an Arrow ``Table``, or what
            else Arrow can read (``__arrow_c_stream__``).
        client_column: Column with the user id, strings or integers.
        text_column: Column with the text, or several with commas between them, whose texts are
            joined by a blank line.
        date_column: Column with the date (ISO string, date or timestamp); may be absent.
        label_column: Column with the class of a text (a string, an integer or a data set's class
            label), or several with commas between them, whose values are joined by " | "; may be
            absent. Empty: labels are not read.
        strict: For the owner who looks, never for a node that answers: also refuse a source
            without a usable text, one whose texts are numbers, and bytes that are not UTF-8.

    Raises:
        ConfigError: If an argument is out of range.
        DataError: If the source cannot be found or read or has no such column; the sentence names
            the file, the line or row and the column, and never quotes what stands there.
        MissingExtraError: If a data set is asked for and ``datasets`` is not installed.
    """
    columns = Columns(client_column, text_column, date_column, strict=strict, label=label_column)
    return _users(source, columns)


COLUMNS: Final = {
    "client-column": "client_id",
    "text-column": "text",
    "date-column": "date",
    "label-column": "label",
}
"""Keys that name a column, and what is read where nobody sets them; the first is the unit of
privacy."""


def load_configured(
    *configurations: Mapping[str, Any], strict: bool = False, labels: bool = False
) -> Users:
    """Read the users that a configuration names.

    Args:
        configurations: Looked up in order; the first value that is not empty counts. Keys: `data`
            (what `load_users` takes; a path is relative to where the command was typed; "sample"
            is `SAMPLE`),
            `client-column`, `text-column`, `date-column`, `label-column`.
        strict: As in `load_users`.
        labels: Whether the classes of documents are read too, from `label-column`: for those who
            ask for classes.

    Raises:
        DataError: None of them has `data`, or the users cannot be read.
    """

    def setting(key: str) -> str:
        default = COLUMNS.get(key, "")
        found = (c[key] for c in configurations if c.get(key) not in (None, ""))  # 0 is a name
        return str(next(found, default))

    columns = Columns(
        setting("client-column"),
        setting("text-column"),
        setting("date-column"),
        strict=strict,
        label=setting("label-column") if labels else "",
    )
    source = setting("data")
    if not source:
        raise DataError(
            "no data: set `data` to a file of users in the node's configuration "
            "(--node-config 'data=\"/path/users.jsonl\"') or in the run's"
        )
    with raised_as(ConfigError, ConfigError, prefix="data = "):
        return _users(str(SAMPLE) if source == "sample" else source, columns)


def _users(source: Any, columns: Columns) -> Users:
    """All users of a source; where their owner looks, what is wrong with all documents is said.

    A part of a file is in memory at a time; of a JSON array or a data set, all of it.

    Raises:
        DataError: It cannot be read, or has no rows.
    """
    where = "the table" if read.is_table(source) else "the data set"
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
    gathered = Gathered(columns)
    try:
        for place, cells in _rows(source, columns, where):
            gathered.add(place, cells)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"{error.filename or where} cannot be read ({reason}).") from None
    users = gathered.users()
    if not len(users):
        raise DataError(f"{where} holds no rows.")
    with raised_as(DataError, DataError, prefix=f"{where}: "):
        if columns.strict:
            users.check_documents()
    return users


def _rows(source: Any, columns: Columns, where: str) -> Iterator[tuple[str, Cells]]:
    """The rows of a source, wherever it is, and what sentences call each."""
    if isinstance(source, str | os.PathLike):
        path = user_path(where)
        if not where:
            raise DataError("The source is empty: name a file, a folder or a data set.")
        if path.is_dir() and data_sets.is_saved(path):
            source = data_sets.saved(path)
        elif path.is_dir():
            return read.read_folder(path, columns)
        elif path.exists():
            return read.read_file(path, columns)
        elif data_sets.is_named(where):
            source = data_sets.from_hub(where)
        else:
            raise DataError(f"{path} does not exist.")
    if read.is_table(source):
        return read.rows_of_table(source, columns, where)
    return data_sets.rows_of(data_sets.split_of(source, "train", where=where), columns, where=where)
