"""The users of a node: who they are and what they wrote."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.data.columns import Cells, Columns, is_unicode, parse_date
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.privacy import skipping

_NUMBER = re.compile(r"\s*[-+]?[0-9][0-9.,eE+-]*\s*")

# Domain separation: the coin of one purpose says nothing about the coin of another one.
_HELD_OUT = b"held-out"

_UNDATED: Final = (
    "min-date needs a date per document, and that column is missing or of another type: "
    "date-column names one of ISO dates, days or timestamps."
)
_UNLABELLED: Final = (
    "classes needs a label per document, and that column is missing or of another type: "
    "label-column names one of strings or whole numbers."
)


def seed_key(seed: int) -> bytes:
    """Turn a seed into a 16-byte hash key.

    Args:
        seed: Any integer that fits 16 bytes.

    Raises:
        OverflowError: If it does not.
    """
    return int(seed).to_bytes(16, "big", signed=True)


def parse_min_date(value: date | str) -> date:
    """Turn the setting ``min-date`` into a day.

    Raises:
        ConfigError: If it is neither a date nor an ISO date string.
    """
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"min-date must be an ISO date such as 2025-03-18, got {value!r}."
        ) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class Users:
    """Users and their documents, grouped by user.

    A user is the unit of privacy. A user whose text is empty (or entirely older than a date
    filter) stays in the roster with zero documents and contributes the zero vector: whether a
    person wrote anything is private, so it must not change the head-count.

    Args:
        user_ids: Distinct ids of the u users, in order of first appearance.
        texts: The n documents, those of one user next to one another.
        owners: int64 (n,), index into ``user_ids``, nondecreasing.
        dates: One date (or None where unknown) per document, or None when there are no dates.
        labels: The class of each document (None where it names none), or None when there are no
            labels.
        unusable: int64 (u,), how many rows of each user hold no usable text, or None for none; they
            are counted as `skipping` counts where it is said which documents count.

    Raises:
        DataError: If ids repeat or have no UTF-8, lengths differ, or owners are out of order or
            out of range.
    """

    user_ids: tuple[str, ...]
    texts: list[str]
    owners: NDArray[np.int64]  # (n,)
    dates: list[date | None] | None = None
    labels: list[str | None] | None = None
    unusable: NDArray[np.int64] | None = None  # (u,)

    def __post_init__(self) -> None:
        owners = np.asarray(self.owners, dtype=np.int64)
        columns = [one for one in (self.texts, self.dates, self.labels) if one is not None]
        if any(len(column) != len(owners) for column in columns):
            raise DataError(
                f"dates, labels and owners must hold one entry for each of {len(self.texts)} texts."
            )
        # Every coin and every turn is a hash of an id's bytes. What has none would fail in the
        # rounds, when the budget is being spent, and take the node's other users along.
        if len(set(self.user_ids)) != len(self.user_ids) or not is_unicode("".join(self.user_ids)):
            raise DataError("user_ids must be distinct, of text that UTF-8 can hold.")
        ordered = np.concatenate([[0], owners, [len(self.user_ids) - 1]])
        if owners.size and np.any(np.diff(ordered) < 0):
            raise DataError(
                f"owners must lie in 0..{len(self.user_ids) - 1} and be nondecreasing: a user's "
                "texts stand together."
            )
        object.__setattr__(self, "user_ids", tuple(self.user_ids))
        object.__setattr__(self, "owners", owners)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[object]]) -> Users:
        """Group rows by user, in order of first appearance.

        Each is judged as a row of a file is (`load_users`): empty texts (or white space), and
        values that are no text at all, count for their user but are no document, and a date that
        cannot be read is an unknown one.

        Args:
            rows: Each ``(user_id, text)``, ``(user_id, text, date)`` or ``(user_id, text, date,
                label)``: an id as text or whole number (7 and "7" are one person), a date as
                `datetime.date`, `datetime.datetime` or ISO text, a label as text or whole number,
                both None where unknown. Where no row has a date's or a label's place, there are no
                dates or no labels.

        Raises:
            DataError: If a row has other fields, or an id that is neither or empty; the sentence
                names the row.
        """
        names = ("user id", "text", "date", "label")
        gathered = Gathered(Columns(*names[:3], label=names[3]))
        for number, row in enumerate(rows, start=1):
            cells = dict(zip(names, _fields(row, number), strict=False))
            gathered.add(f"row {number}", cells)
        return gathered.users()

    def __len__(self) -> int:
        """Number of users, those without documents included."""
        return len(self.user_ids)

    def __repr__(self) -> str:
        """Sizes alone: what is printed, or stands in a traceback, is nobody's text and no id."""
        return f"Users({len(self.user_ids)} users, {len(self.texts)} texts)"

    def select(self, mask: NDArray[np.bool_]) -> Users:
        """Keep the users where ``mask`` is true, with all their documents.

        Args:
            mask: bool (u,).
        """
        # By their positions: in a simulation every node takes its few out of everybody's.
        rows = np.flatnonzero(mask[self.owners])
        new_index = np.cumsum(mask, dtype=np.int64) - 1
        return replace(
            self,
            user_ids=tuple(self.user_ids[user] for user in np.flatnonzero(mask).tolist()),
            owners=new_index[self.owners[rows]],
            unusable=None if self.unusable is None else self.unusable[mask],
            **self._columns(rows.tolist()),
        )

    def only(self, keep: NDArray[np.bool_]) -> Users:
        """The same users with some of their documents.

        Args:
            keep: bool (n,), which.
        """
        rows = np.flatnonzero(keep)
        return replace(self, owners=self.owners[rows], **self._columns(rows.tolist()))

    def note_left_out(self, mask: NDArray[np.bool_]) -> None:
        """Count documents that are left out, and who wrote them, as `skipping` counts.

        Args:
            mask: bool (n,), which.
        """
        if mask.any():
            users = np.unique(self.owners[mask]).tolist()
            skipping.note([self.user_ids[user] for user in users], records=int(mask.sum()))

    def _columns(self, rows: list[int]) -> dict[str, Any]:
        """What is held of some documents, besides whose they are."""
        return {
            "texts": [self.texts[row] for row in rows],
            "dates": None if self.dates is None else [self.dates[row] for row in rows],
            "labels": None if self.labels is None else [self.labels[row] for row in rows],
        }

    def partition(self, *, partition_id: int, num_partitions: int) -> Users:
        """The users of one node: user i belongs to node ``i % num_partitions``, whole.

        Args:
            partition_id: In 0..num_partitions - 1.
            num_partitions: Number of nodes, at least 1.

        Raises:
            ConfigError: If either is out of range.
        """
        check_whole("num-partitions", num_partitions, ge=1)
        check_whole("partition-id", partition_id, ge=0, le=num_partitions - 1)
        return self.select(np.arange(len(self)) % num_partitions == partition_id)

    def since(self, day: date | str) -> Users:
        """Drop documents dated before ``day`` or not at all; every user stays.

        Use the day after the public model's training data ends, so that its memory of that text
        cannot be mistaken for learning from it. Where no document is left, every user has none:
        one user's documents must not decide whether a node takes part (`check_documents` tells
        the owner). Those without a date are counted as left out.

        Args:
            day: The first that counts, or its ISO form such as "2025-03-18".

        Raises:
            ConfigError: If it is not a day.
            DataError: If there are no dates at all, as in a source without such a column.
        """
        first = parse_min_date(day)
        if self.dates is None:
            raise DataError(_UNDATED)
        self.note_left_out(np.array([dated is None for dated in self.dates], dtype=np.bool_))
        keep = [dated is not None and dated >= first for dated in self.dates]
        return self.only(np.array(keep, dtype=np.bool_))

    def of_classes(self, classes: Sequence[str]) -> Users:
        """Drop documents that are of none of some classes; every user stays.

        What one user calls a document must not decide about the others: one that names another
        class, or none, is left out and counted as `skipping` counts.

        Args:
            classes: Public, as the run has them.

        Raises:
            DataError: If there are no labels at all, as in a source without such a column.
        """
        if self.labels is None:
            raise DataError(_UNLABELLED)
        keep = np.array([label in classes for label in self.labels], dtype=np.bool_)
        self.note_left_out(~keep)
        return self.only(keep)

    def check_documents(self) -> None:
        """Tell an owner who looks that nobody here has a document, or only numbers.

        For the person who holds all this text, before anything is asked. Never part of an answer:
        whether it raises depends on single documents.

        Raises:
            DataError: There is no document, or each is a number.
        """
        if not self.texts:
            raise DataError(
                "there is no usable text: in no row of the data is the text column a string that "
                "holds more than white space."
            )
        if all(_NUMBER.fullmatch(text) for text in self.texts):
            raise DataError(
                "every text is a number: text-column must name the column with what people wrote."
            )

    def split_held_out(self, *, fraction: float, seed: int) -> tuple[Users, Users]:
        """Set users aside for evaluation by a coin that depends on the seed and the user id only.

        A keyed hash, not a shuffle: the same person is held out whatever the order of the file,
        whoever else is in it, and on whichever node they live.

        Args:
            fraction: Expected share of held-out users, in [0, 1].
            seed: Key of the coins.

        Returns:
            ``(private, held_out)``; every user is in exactly one of them.

        Raises:
            ConfigError: If the fraction is outside [0, 1].
        """
        check_number("held-out-fraction", fraction, ge=0, le=1)
        key = seed_key(seed)
        limit = int(fraction * 2**64)
        coins = [
            hashlib.blake2b(user.encode(), digest_size=8, key=key, person=_HELD_OUT).digest()
            for user in self.user_ids
        ]
        held_out = np.array([int.from_bytes(coin) < limit for coin in coins], dtype=np.bool_)
        return self.select(~held_out), self.select(held_out)


def _fields(row: Sequence[object], number: int) -> Sequence[object]:
    """The fields of a row that an app has made."""
    fields = list(row) if isinstance(row, Iterable) else []
    # pandas puts the number of the row first, and every row would be a user of its own.
    numbered = hasattr(row, "Index")
    if numbered or isinstance(row, str | bytes | Mapping) or not 2 <= len(fields) <= 4:
        raise DataError(
            f"row {number} must be (user_id, text), (user_id, text, date) or (user_id, text, date, "
            "label), as of frame[columns].itertuples(index=False), got a "
            f"{type(row).__name__} of {len(fields)}."
        )
    return fields


class Gathered:
    """What was read, row after row, grouped by user in order of first appearance.

    Args:
        columns: Which of a row to read, and what may stand there.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._codes: dict[str, int] = {}
        self._documents: list[tuple[int, str, date | None, str | None]] = []
        self._unusable: list[int] = []
        self._dated = self._labelled = False

    def add(self, place: str, cells: Cells) -> None:
        """Take in a row; those of a file come in order.

        Args:
            place: What sentences call it.
            cells: What stands in each column that is there, at least in the user's.

        Raises:
            DataError: It does not say whose it is; or the owner looks, and its text is no UTF-8.
        """
        columns = self._columns
        owner = self._codes.setdefault(columns.user(place, cells), len(self._codes))
        text = columns.text(place, cells)
        self._dated |= columns.date in cells
        self._labelled |= bool(columns.labels) and cells.keys() >= set(columns.labels)
        if text is None:
            self._unusable.append(owner)
        elif text.strip():
            day = parse_date(cells.get(columns.date))
            self._documents.append((owner, text, day, columns.label(cells)))

    def users(self) -> Users:
        """Everybody, once all rows are in."""
        own = sorted(self._documents, key=lambda one: one[0])  # of a user in the source's order
        return Users(
            user_ids=tuple(self._codes),
            texts=[text for _, text, _, _ in own],
            owners=np.array([owner for owner, *_ in own], dtype=np.int64),
            dates=[day for _, _, day, _ in own] if self._dated else None,
            labels=[label for *_, label in own] if self._labelled else None,
            unusable=np.bincount(np.array(self._unusable, int), minlength=len(self._codes)),
        )


def check_labels(parts: Sequence[Users], classes: Sequence[str]) -> None:
    """Tell an owner who looks that no document at all is of any of some classes.

    For the person who holds all this text, as `Users.check_documents`: every answer would be noise
    alone. That single documents are of another class stops nobody (`Users.of_classes`).

    Args:
        parts: Everybody, on as many nodes as there are.
        classes: Which a run will ask for.

    Raises:
        DataError: There is no such document, or there are no labels.
    """
    found: Counter[str | None] = Counter()
    for part in parts:
        if part.labels is None:
            raise DataError(_UNLABELLED)
        found.update(part.labels)
    if not found or any(name in found for name in classes):
        return
    labels = [label for label, _ in found.most_common() if label]
    said = f"they are labelled {few(labels)}" if labels else "they have no labels"
    raise DataError(
        f"no document is of any class of this run, which has {few(classes)}: {said}. Every answer "
        "would be noise alone: set label-column to the column that names the class, or classes to "
        "names that are public, spelt as the column spells them, with semicolons between them."
    )


def few(names: Sequence[str], *, most: int = 5, letters: int | None = 40) -> str:
    """The first names of a list, quoted, and how many more there are.

    Args:
        names: of any length each.
        most: how many are named.
        letters: that are shown of a name; None for all.
    """
    shown = [
        repr(name if letters is None or len(name) <= letters else f"{name[:letters]}...")
        for name in names[:most]
    ]
    return ", ".join(shown) + (f" and {len(names) - most:,} more" if len(names) > most else "")
