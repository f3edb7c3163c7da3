"""A question about text, which needs no model library, and a node that is asked it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn.data import Users
from flower_privsyn.messages import wire
from flower_privsyn.privacy import GaussianMechanism, Sampling
from flower_privsyn.queries import Broadcast, Cohort, Query, Reads
from flower_privsyn.strategies import (
    Method,
    Question,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
)
from flower_privsyn.testing import LoopbackGrid
from tests.support.questions import plain_ask

REQUEST = wire.DataRequest(
    embedding_model="",
    embedding_precision="float32",
    max_tokens=3,
    max_samples=0,
    min_date="",
    held_out_fraction=0.0,
    seed=0,
    reads="text",
)


@dataclass(frozen=True, kw_only=True)
class TextLengths(Query):
    """How many of a user's documents have so many characters."""

    name: ClassVar[str] = "text_lengths"
    reads: ClassVar[Reads] = "text"

    bins: int = 4
    width: int = 10

    @property
    def clip_norm(self) -> float:
        return 3.0

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        if broadcast:
            raise ValueError("text_lengths is asked about nothing but text")

    def answer_length(self, broadcast: Broadcast) -> int:
        return self.bins

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> np.ndarray[Any, Any]:
        counts = np.zeros((cohort.num_users, self.bins))
        lengths = np.array([len(text) for text in cohort.records], dtype=np.int64)
        places = np.minimum(lengths // self.width, self.bins - 1)
        np.add.at(counts, (cohort.owners, places), 1.0)
        return counts


class AsksLengths(Method):
    """Asks once how long texts are."""

    queries = (TextLengths(),)

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        return (RecordSource.of_text(),)

    def ask(self, state: State, number: int) -> Question:
        return Question(self.queries[0], {})

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        return {"counts": release.values}

    def finish(self, state: State) -> dict[str, Any]:
        return {}


def load(where: Context) -> Users:
    rows = [
        ("a", "short"),
        ("a", "a text of some words, longer"),
        ("b", "x" * 99),
        ("c", ""),
        ("d", "nul\0"),
    ]
    rows += [("e", "12345678901")] * 5
    return Users.from_rows(rows)


def ask_node(
    app: ClientApp,
    query: Query,
    data: wire.DataRequest = REQUEST,
    *,
    broadcast: Broadcast | None = None,
    node: dict[str, Any] | None = None,
    is_simulation: bool = True,
    sampling: Sampling | None = None,
) -> tuple[Message, Message]:
    """A node's replies to the roll call and to a question."""
    grid = LoopbackGrid(
        app, num_nodes=1, node_configs=[node or {}], is_simulation=is_simulation, run_id=2**40
    )
    ask = plain_ask(
        query=query,
        broadcast=broadcast or {},
        data=data,
        sampling=sampling,
        mechanism=GaussianMechanism(noise_multiplier=5.0, l2_sensitivity=query.clip_norm),
    )
    record = wire.broadcast_record(ask.broadcast, precision="float16")
    plan = wire.Announcement(queries=(query.name,))
    (prepared,) = grid.send_and_receive(
        [Message(wire.pack_prepare(data, plan=plan), 1, wire.PREPARE)]
    )
    (answered,) = grid.send_and_receive(
        [Message(wire.pack_ask(ask, record), 1, wire.message_type(query))]
    )
    return prepared, answered
