"""The protocol of aggregation: it exchanges messages, checks its own answers, returns the sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from flower_privsyn.messages import wire
from flower_privsyn.queries import Query

#: Counts of replies beside those of the nodes that were asked: nobody is missing for them.
BESIDE = frozenset({"rejected: not asked", "rejected: second reply", "rejected: late reply"})

_ERROR_CODE = "error code "
_OTHER_ERROR = "error of Flower or another code"


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


@dataclass(frozen=True, kw_only=True, repr=False)
class Collected:
    """The raw sum of a round.

    Attributes:
        total: (m,) int64, in steps of the grid.
        num_users: users whose answers are in it, or may be where nobody counts them.
        answering: nodes whose answers are in it.
        counts: replies that were used, and why others were not.
        noise_std: standard deviation of the noise that nodes have added to it; 0 for none.
        facts: for the ledger's line of the sum: public, whose noise is in it; None for nothing.
        lost: why there is no sum, in words that the run directory may hold; "" where there is one.
        charged: whether nodes have charged their answers, so that a round that is left out costs
            what a sum does.
    """

    total: npt.NDArray[np.int64]
    num_users: int
    answering: frozenset[int]
    counts: Counter[str]
    noise_std: float = 0.0
    facts: Mapping[str, Any] | None = None
    lost: str = ""
    charged: bool = False


class Aggregation(ABC):
    """How questions go out and their answers become one sum.

    Formal guarantee:
        One reply a node is in the sum at most, and only where it has the agreed form. So a user
        moves `Collected.total` by at most the clip norm on each node, and a node by what its users
        may; which of this the server sees for itself, and which it must believe the nodes, each
        protocol says.
    """

    @abstractmethod
    def messages(
        self, asks: Iterable[tuple[int, wire.Ask]], broadcast: ArrayRecord, *, grid: Grid
    ) -> Iterator[Message]:
        """The messages of a round, each built when there is room for it.

        Args:
            asks: nodes with the question as each of them gets it.
            broadcast: of the question, packed.
            grid: for protocols that have something to settle before the question.
        """

    @abstractmethod
    def collect(self, replies: Iterable[Message], *, expected: Expected, grid: Grid) -> Collected:
        """Add up the replies that may be.

        Args:
            replies: to what `messages` sent, each looked at once and forgotten.
            expected: what honest ones look like.
            grid: for protocols of several exchanges.
        """


def first_replies(
    replies: Iterable[Message], *, asked: Collection[int], counts: Counter[str]
) -> Iterator[Message]:
    """The first reply of every node that was asked, where it is no error.

    Args:
        replies: each looked at once.
        asked: nodes.
        counts: gets why others are left out, and how many are missing.
    """
    unreachable = 0
    seen: set[int] = set()
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in asked:
            if reply.has_error():
                # Flower's own word about a node that is gone, or whose reply is.
                unreachable += 1
                counts[error_key(reply.error.code)] += 1
            else:
                counts["rejected: not asked"] += 1
            continue
        if node in seen:
            counts["rejected: second reply"] += 1
            continue
        seen.add(node)
        if reply.has_error():
            counts[error_key(reply.error.code)] += 1
            continue
        yield reply
    counts["missing"] = max(0, len(asked) - len(seen) - unreachable)


def words_of(key: str) -> str:
    """What a count of replies is of, in words.

    Args:
        key: of the counts, as "error code 1002" or "missing".
    """
    if key.startswith("sa_"):  # of a step of secure aggregation
        step, _, rest = key.partition(": ")
        return f"{words_of(rest)} ({step})"
    code = key.removeprefix(_ERROR_CODE)
    if code != key:
        return wire.words_of(int(code))
    return {"missing": "no reply", _OTHER_ERROR: wire.words_of(-1)}.get(key, key)


def error_key(code: int) -> str:
    """A name for an error code: a client could put anything into a number that is not agreed."""
    if code in set(wire.ClientErrorCode):
        return f"{_ERROR_CODE}{code}"
    return _OTHER_ERROR
