"""The protocol of aggregation: it exchanges messages, checks its own answers, returns the sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from flower_privsyn.messages import wire
from flower_privsyn.queries import Query


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What honest replies of a round look like.

    Attributes:
        query: the question that was asked.
        length: how many numbers it answers.
        most_users: by node that was asked, the most users that may be in its answer.
        roster_users: by node that was asked, the users that it announced.
    """

    query: Query
    length: int
    most_users: Mapping[int, int]
    roster_users: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The raw sum of a round.

    Attributes:
        total: (m,) int64, in steps of the grid.
        num_users: users whose answers are in it.
        answering: nodes whose answers are in it.
        counts: replies that were used, and why others were not.
    """

    total: npt.NDArray[np.int64]
    num_users: int
    answering: frozenset[int]
    counts: Counter[str]


class Aggregation(ABC):
    """How questions go out and their answers become one sum.

    Formal guarantee:
        One reply a node is in the sum at most, and only where it has the agreed form: the length of
        the question, on the grid, within the bound of its head-count, and no more users than the
        node announced. So a user moves `Collected.total` by at most the clip norm on each node, and
        a node by what its users may.
    """

    @abstractmethod
    def messages(
        self, asks: Iterable[tuple[int, wire.Ask]], broadcast: ArrayRecord
    ) -> Iterator[Message]:
        """The messages of a round, each built when there is room for it.

        Args:
            asks: nodes with the question as each of them gets it.
            broadcast: of the question, packed.
        """

    @abstractmethod
    def collect(
        self, replies: Iterable[Message], *, expected: Expected, grid: Grid | None
    ) -> Collected:
        """Add up the replies that may be.

        Args:
            replies: to what `messages` sent, each looked at once and forgotten.
            expected: what honest ones look like.
            grid: for protocols of several exchanges.
        """
