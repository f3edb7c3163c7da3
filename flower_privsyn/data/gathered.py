"""Rows brought together by user, of all nodes, or of as many nodes as memory is given to.

A simulation deals one file to many nodes, and each of its processes reads it. All of the text in
each of them is what a population of a million has no memory for; so a process keeps the rows of
some nodes alone, and reads again for the others.
"""

from __future__ import annotations

from datetime import date
from typing import Final

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.data.columns import Rows
from flower_privsyn.data.users import Users
from flower_privsyn.privacy import skipping

#: What is left of the nodes that are kept when their rows are more than memory is given to.
_LEFT: Final = 0.75

#: What a document takes beside its characters: its object, and what says whose and of when it is.
_DOCUMENT_BYTES: Final = 180


class Gathered:
    """What was read, part after part, grouped by user in order of first appearance.

    User i is dealt to node `i % nodes`, whole, as by `Users.deal`. Of everybody the ids are kept;
    documents those of the nodes from `first` on, cyclically, and of ever fewer of them while they
    take more than `most_bytes`: at least those of `first`.

    Args:
        where: The rows are from, for sentences.
        nodes: To how many users are dealt.
        first: Whose users are wanted, in 0..nodes - 1.
        most_bytes: Of documents, about; None for all of them.

    Raises:
        ConfigError: `first` or `nodes` is out of range.
    """

    def __init__(
        self,
        where: str,
        *,
        nodes: int = 1,
        first: int = 0,
        most_bytes: int | None = None,
    ) -> None:
        check_whole("num-partitions", nodes, ge=1)
        check_whole("partition-id", first, ge=0, le=nodes - 1)
        self.where = where
        self._codes: dict[str, int] = {}
        self._nodes = nodes
        self._first = first
        self._most = most_bytes
        self._width = nodes
        self._documents: list[tuple[int, str, date | None, str | None]] = []
        self._unusable: list[int] = []
        self._dated = self._labelled = False
        self._why: tuple[str, str] | None = None
        #: Of the documents that are kept, about.
        self.nbytes = 0

    def holds(self, node: int) -> bool:
        """Whether a node's documents are kept."""
        return (node - self._first) % self._nodes < self._width

    def add(self, rows: Rows) -> None:
        """Take in the rows of a file, or some of them; those of a file come in order."""
        self._why = self._why or (rows.undated, rows.unlabelled)
        self._dated |= rows.dates is not None
        self._labelled |= rows.labels is not None
        nothing = [None] * len(rows.texts)
        columns = (rows.users, rows.texts, rows.dates or nothing, rows.labels or nothing)
        for user, text, day, label in zip(*columns, strict=True):
            owner = self._codes.setdefault(user, len(self._codes))
            if text is None:
                self._unusable.append(owner)
            elif self.holds(owner % self._nodes) and text.strip():
                self._documents.append((owner, text, day, label))
                self.nbytes += len(text) + _DOCUMENT_BYTES
        while self._most is not None and self._width > 1 and self.nbytes > self._most:
            self._width = max(1, int(_LEFT * self._width))
            self._documents = [one for one in self._documents if self.holds(one[0] % self._nodes)]
            self.nbytes = sum(len(one[1]) + _DOCUMENT_BYTES for one in self._documents)

    def users(self, node: int = 0) -> Users:
        """The users of a node whose documents are kept; unusable ones of theirs are counted."""
        ids = list(self._codes)[node :: self._nodes]
        unusable = [owner for owner in self._unusable if owner % self._nodes == node]
        if unusable:
            skipping.note({ids[o // self._nodes] for o in unusable}, records=len(unusable))
        own = [one for one in self._documents if one[0] % self._nodes == node]
        own.sort(key=lambda one: one[0])  # stable: of a user in the order of the source
        undated, unlabelled = self._why or ("", "")
        return Users(
            user_ids=tuple(ids),
            texts=[text for _, text, _, _ in own],
            owners=np.array([owner // self._nodes for owner, *_ in own], dtype=np.int64),
            dates=[day for _, _, day, _ in own] if self._dated else None,
            undated=f"{undated} ({self.where})",
            labels=[label for *_, label in own] if self._labelled else None,
            unlabelled=f"{unlabelled} ({self.where})",
        )
