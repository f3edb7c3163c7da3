"""Rows brought together by user, of all nodes, or of as many nodes as memory is given to.

A simulation deals one file to many nodes, and each of its processes reads it. All of the text in
each of them is what a population of a million has no memory for; so a process keeps the rows of
some nodes alone, and reads again for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.data.columns import Rows
from flower_privsyn.data.users import Users
from flower_privsyn.privacy import skipping

IntArray = npt.NDArray[np.int64]

#: What is left of the nodes that are kept when their rows are more than memory is given to.
_LEFT: Final = 0.75


@dataclass(frozen=True, repr=False)
class _Part:
    """Documents of some rows, as Arrow arrays, and whose they are."""

    owners: IntArray  # (n,) in order of first appearance, of everybody
    texts: Any  # large_string
    dates: Any | None  # date32
    labels: Any | None  # large_string

    @property
    def nbytes(self) -> int:
        columns = (self.texts, self.dates, self.labels)
        return int(self.owners.nbytes + sum(c.nbytes for c in columns if c is not None))

    def of(self, rows: npt.NDArray[np.int64]) -> _Part:
        import pyarrow as pa

        places = pa.array(rows)
        columns = (self.texts, self.dates, self.labels)
        return _Part(self.owners[rows], *(c if c is None else c.take(places) for c in columns))


class Gathered:
    """What was read, part after part, grouped by user in order of first appearance.

    User i is dealt to node `i % nodes`, whole, as by `Users.deal`. Of everybody the ids are kept;
    documents those of the nodes from `first` on, cyclically, and of ever fewer of them while they
    take more than `most_bytes`: at least those of `first`.

    Args:
        where: The rows are from, for sentences.
        user_id: The one user of rows that name nobody; None where they do.
        nodes: To how many users are dealt.
        first: Whose users are wanted, in 0..nodes - 1.
        most_bytes: Of documents; None for all of them.

    Raises:
        ConfigError: `first` or `nodes` is out of range.
    """

    def __init__(
        self,
        where: str,
        *,
        user_id: str | None = None,
        nodes: int = 1,
        first: int = 0,
        most_bytes: int | None = None,
    ) -> None:
        check_whole("num-partitions", nodes, ge=1)
        check_whole("partition-id", first, ge=0, le=nodes - 1)
        self._where = where
        self._codes: dict[str, int] = {} if user_id is None else {user_id: 0}
        self._of_one = user_id is not None
        self._nodes = nodes
        self._first = first
        self._most = most_bytes
        self._width = nodes
        self._parts: list[_Part] = []
        self._unusable: list[IntArray] = []
        self._why: tuple[str, str] | None = None

    @property
    def nbytes(self) -> int:
        """Of the documents that are kept."""
        return sum(part.nbytes for part in self._parts)

    def holds(self, node: int) -> bool:
        """Whether a node's documents are kept."""
        return (node - self._first) % self._nodes < self._width

    def add(self, rows: Rows) -> None:
        """Take in the rows of a file, or some of them; those of a file come in order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._why is None:
            self._why = (rows.undated, rows.unlabelled)
        owners = self._owners(rows)
        self._unusable.append(owners[rows.unusable.to_numpy()])
        blank = pc.equal(pc.utf8_trim_whitespace(rows.texts), pa.scalar("", pa.large_string()))
        kept = np.flatnonzero(~blank.to_numpy() & self._held(owners))
        columns = (rows.texts, rows.dates, rows.labels)
        whole = (None if c is None else c.combine_chunks() for c in columns)
        self._parts.append(_Part(owners, *whole).of(kept))
        while self._most is not None and self._width > 1 and self.nbytes > self._most:
            self._width = max(1, int(_LEFT * self._width))
            self._parts = [part.of(np.flatnonzero(self._held(part.owners))) for part in self._parts]

    def users(self, node: int = 0) -> Users:
        """The users of a node whose documents are kept; unusable ones of theirs are counted."""
        import pyarrow as pa

        ids = list(self._codes)[node :: self._nodes]
        unusable = np.concatenate(self._unusable)
        unusable = unusable[unusable % self._nodes == node] // self._nodes
        if unusable.size:
            owners = np.unique(unusable).tolist()
            skipping.note((ids[user] for user in owners), records=len(unusable))
        parts = [p.of(np.flatnonzero(p.owners % self._nodes == node)) for p in self._parts]
        owned = np.concatenate([part.owners for part in parts]) // self._nodes
        order = np.argsort(owned, kind="stable")  # (n,)
        undated, unlabelled = self._why or ("", "")
        return Users(
            user_ids=tuple(ids),
            texts=_joined([p.texts for p in parts], parts, pa.large_string(), order) or [],
            owners=owned[order],
            dates=_joined([p.dates for p in parts], parts, pa.date32(), order),
            undated=f"{undated} ({self._where})",
            labels=_joined([p.labels for p in parts], parts, pa.large_string(), order),
            unlabelled=f"{unlabelled} ({self._where})",
        )

    def _held(self, owners: IntArray) -> npt.NDArray[np.bool_]:
        """(n,) which rows are of nodes that are kept."""
        held: npt.NDArray[np.bool_] = (owners - self._first) % self._nodes < self._width
        return held

    def _owners(self, rows: Rows) -> IntArray:
        """(n,) whose each row is; who is new comes after all others."""
        if self._of_one:
            return np.zeros(len(rows.texts), dtype=np.int64)
        encoded = rows.clients.combine_chunks().dictionary_encode()
        codes = self._codes
        found = [codes.setdefault(name, len(codes)) for name in encoded.dictionary.to_pylist()]
        owners: IntArray = np.array(found, dtype=np.int64)[encoded.indices.to_numpy()]
        return owners


def _joined(columns: list[Any], parts: list[_Part], kind: Any, order: IntArray) -> list[Any] | None:
    """One column of all parts, null for those without it; None where no part has it."""
    import pyarrow as pa

    if all(column is None for column in columns):
        return None
    chunks = [
        pa.nulls(len(part.owners), kind) if column is None else column
        for column, part in zip(columns, parts, strict=True)
    ]
    found: list[Any] = pa.concat_arrays(chunks).take(pa.array(order)).to_pylist()
    return found
