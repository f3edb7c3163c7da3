"""The columns of a source of rows: which to read, and what may stand in them.

The rules are the same for every kind of source, and each cell is judged by itself: what one user
wrote says nothing of the others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Final

import numpy as np

from flower_privsyn.errors import ConfigError, DataError

# What a column may be called in a file whose first row could as well be somebody's text.
_NAME: Final = re.compile(r"\w[\w.-]{0,30}(?: [\w.-]{1,20})?")
# What `surrogateescape` makes of bytes that are not UTF-8.
_RAW: Final = re.compile("[\udc80-\udcff]")

#: Between the texts of several columns that are one document.
_BETWEEN_TEXTS: Final = "\n\n"

#: Between the labels of several columns that are one class.
_BETWEEN_LABELS: Final = " | "


Cells = Mapping[str, object]
"""What stands in the columns of a row, by their names; bytes that are no UTF-8 are halves of
surrogate pairs."""


class Columns:
    """Which columns to read.

    Args:
        client: Column with the user id.
        text: Column with the text, or several with commas between them, whose texts are joined
            by a blank line.
        date_: Column with the date.
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
        *,
        strict: bool = False,
        label: str = "",
    ) -> None:
        self.texts = tuple(name.strip() for name in str(text).split(","))
        self.labels = tuple(name.strip() for name in str(label).split(",")) if label else ()
        for key, names in (
            ("client-column", (str(client),)),
            ("text-column", self.texts),
            ("label-column", self.labels),
        ):
            if not all(names) or len(set(names)) < len(names):
                raise ConfigError(
                    f"{key} must name columns, each once, with commas between several, got "
                    f"{', '.join(names)!r}."
                )
        # Columns of a table may be numbers; it is read by what these are as text.
        self.client = str(client)
        self.date = str(date_)
        self.strict = strict

    @property
    def required(self) -> tuple[str, ...]:
        """What a source without is refused."""
        return (self.client, *self.texts)

    @property
    def wanted(self) -> tuple[str, ...]:
        """What is read where it is there, each once."""
        return tuple(dict.fromkeys((*self.required, self.date, *self.labels)))

    def check(self, names: Sequence[str], where: str) -> None:
        """Refuse a source without the columns that are needed, or with one that is read twice.

        Args:
            names: Of its columns.
            where: It is, for the sentence.

        Raises:
            DataError: The sentence names the column.
        """
        for name in self.required:
            if name not in names:
                raise DataError(f"{where} {self.missing(name, names)}.")
        for name in self.wanted:
            if names.count(name) > 1:
                raise DataError(
                    f"{where} has {names.count(name)} columns {name!r}; one must be left."
                )

    def missing(self, name: str, names: Sequence[str]) -> str:
        """What to say of a column that is not there: "has no column ...".

        Args:
            name: Of the column.
            names: Of those that are there, which are shown to their owner alone: what stands in the
                first row of a file may be somebody's text. In no case what does not look like a
                name: tables are made of such files.
        """
        wanted = "says whose a row is: client" if name == self.client else "holds the text: text"
        said = f"has no column {name!r}"
        if not self.strict or not all(map(_NAME.fullmatch, names)):
            said += f" among its {len(names)}; the first row of text must hold their names"
        else:
            if near := difflib.get_close_matches(name, names, n=1):
                said += f" (did you mean {near[0]!r}?)"
            said += f"; its columns are {', '.join(map(repr, names))}"
        return f"{said}; name the one that {wanted}-column"

    def user(self, place: str, cells: Cells) -> str:
        """Whose a row is.

        Args:
            place: What sentences call the row.
            cells: What stands in its columns, at least in that of the user.

        Raises:
            DataError: It does not say whose it is.
        """
        value = cells[self.client]
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return str(int(value))
        if isinstance(value, str) and value and is_unicode(value):
            return value
        if value == "":
            said = "not be empty"
        elif isinstance(value, str):
            said = "be text that UTF-8 can hold"
        else:
            kind = "null" if value is None else type(value).__name__
            said = f"be a string or an integer, not {kind}"
            if isinstance(value, float):
                said += "; of a DataFrame: frame[column].astype('Int64').astype(str)"
        raise DataError(f"{place}: {self.client!r} must {said}.")

    def text(self, place: str, cells: Cells) -> str | None:
        """The document of a row; None where one of its columns is unusable, or none is there.

        Args:
            place: As for `user`.
            cells: As for `user`.

        Raises:
            DataError: The owner looks, and it is no UTF-8.
        """
        given = [part for name in self.texts if (part := cells.get(name)) is not None]
        if not given or not all(isinstance(part, str) and "\0" not in part for part in given):
            return None
        text = _BETWEEN_TEXTS.join(part for part in map(str, given) if part.strip())
        if is_unicode(text):
            return text
        if self.strict and _RAW.search(text):
            raise DataError(
                f"{place}: the text is not UTF-8; save the file as UTF-8, or convert it with "
                "`iconv -f WINDOWS-1252 -t UTF-8`."
            )
        return None

    def label(self, cells: Cells) -> str | None:
        """The class of a row; None where one of its columns names none."""
        known = [label for name in self.labels if (label := parse_label(cells.get(name)))]
        return _BETWEEN_LABELS.join(known) if len(known) == len(self.labels) else None


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text, which it cannot do with half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_date(value: object) -> date | None:
    """The day: of UTC for a moment with a zone, of its own words for a text; None for no day."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[D]").item()
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        elif isinstance(value, datetime) and value.tzinfo is not None:
            value = value.astimezone(UTC)
        if isinstance(value, datetime):
            return value.date()
        return value if isinstance(value, date) else None
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
    return value.strip() if isinstance(value, str) and is_unicode(value) else None
