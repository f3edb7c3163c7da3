"""What one node answers, outside any federation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flower_privsyn.messages import wire
from flower_privsyn.messages.wire import unpack_steps
from flower_privsyn.privacy import Sampling
from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.testing import HashEmbedder
from tests.support.federation import WORDS
from tests.support.questions import DATA, plain_ask

RUN = 2**40 + 7


REQUEST = replace(DATA, max_tokens=8, max_samples=2, held_out_fraction=0.0, seed=0)


def where(
    node: dict[str, Any] | None = None,
    run: dict[str, Any] | None = None,
    *,
    run_id: int = 1,
    node_id: int = 5,
) -> Context:
    """What Flower tells a node of itself and of a run."""
    return Context(
        run_id=run_id,
        node_id=node_id,
        node_config=node or {},
        state=RecordDict(),
        run_config=run or {},
    )


def prepare(
    app: ClientApp, data: wire.DataRequest = DATA, context: Context | None = None
) -> Message:
    """A node's reply to the roll call."""
    context = context or where()
    return app(Message(wire.pack_prepare(data), context.node_id, wire.PREPARE), context)


def put(app: ClientApp, question: wire.Ask, context: Context | None = None) -> Message:
    """A node's reply to a question."""
    context = context or where()
    record = wire.broadcast_record(question.broadcast, precision="float32")
    kind = wire.message_type(question.query)
    return app(Message(wire.pack_ask(question, record), context.node_id, kind), context)


def context(data: Path, node: int = 0, nodes: int = 4, run: int = RUN) -> Context:
    dealt = {"partition-id": node, "num-partitions": nodes}
    return where(dealt, {"data": str(data)}, run_id=run, node_id=1000 + node)


def read_answer(reply: Message) -> wire.Answer:
    """The sum and the head-count in a reply, whatever they are."""
    assert reply.has_content(), reply.error
    num_users = reply.content.config_records["privsyn.cohort"]["num_users"]
    assert isinstance(num_users, int)
    packed = reply.content.array_records["privsyn.answer"]["total"].numpy()
    return wire.Answer(total=unpack_steps(packed), num_users=num_users)


def answer(app: ClientApp, where: Context, sampling: Sampling | None = None) -> wire.Answer:
    query = NearestNeighborHistogram(max_samples=2)
    candidates = HashEmbedder().embed([" ".join(WORDS[n : n + 4]) for n in range(12)])
    ask = plain_ask(
        query=query,
        broadcast={"candidates": candidates},
        data=REQUEST,
        sampling=sampling,
        sampling_key=bytes(range(32)),
    )
    record = wire.broadcast_record(ask.broadcast, precision="float16")
    reply = app(Message(wire.pack_ask(ask, record), where.node_id, wire.message_type(query)), where)
    return read_answer(reply)
