"""Sums in the memory of a server that is trusted with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import final

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from flower_privsyn.messages import wire
from flower_privsyn.private_path.aggregation.aggregation import (
    Aggregation,
    Collected,
    Expected,
    first_replies,
)


@final
class Central(Aggregation):
    """Every node sends its raw sum to the server, which adds them up and then the noise.

    Formal guarantee:
        That of `Aggregation`, all of it seen by the server: an answer has the length of the
        question, lies on the grid and within the bound of its head-count, and has no more users
        than the node announced. The server sees the raw sum of each node, and is trusted with it.
    """

    def messages(
        self,
        asks: Iterable[tuple[int, wire.Ask]],
        broadcast: ArrayRecord,
        *,
        grid: Grid,  # noqa: ARG002 - one exchange is all
    ) -> Iterator[Message]:
        """One message a node: the question."""
        for node, ask in asks:
            yield Message(
                wire.pack_ask(ask, broadcast),
                dst_node_id=node,
                message_type=wire.message_type(ask.query),
            )

    def collect(
        self,
        replies: Iterable[Message],
        *,
        expected: Expected,
        grid: Grid,  # noqa: ARG002 - one exchange is all
    ) -> Collected:
        """Add up the first usable reply of every node that was asked."""
        asked = expected.most_users
        counts: Counter[str] = Counter()
        total = np.zeros(expected.length, dtype=np.int64)
        num_users = 0
        answering: set[int] = set()
        for reply in first_replies(replies, asked=asked.keys(), counts=counts):
            node = reply.metadata.src_node_id
            try:
                answer = wire.unpack_answer(
                    reply,
                    query=expected.query,
                    length=expected.length,
                    roster_users=expected.roster_users[node],
                    most_users=asked[node],
                )
            except wire.WireError as error:
                counts[f"rejected: {error}"] += 1
                continue
            counts["answers"] += 1
            answering.add(node)
            num_users += answer.num_users
            total += answer.total
        return Collected(
            total=total, num_users=num_users, answering=frozenset(answering), counts=counts
        )
