"""The private path with nodes that send what they should not, or hold other users than before."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from flower_privsyn.client_apps.account import NodeLedger
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import FederationError
from flower_privsyn.messages import wire
from flower_privsyn.messages.wire import pack_steps
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.federation import make_users
from tests.support.probe import Probe
from tests.support.run_files import lines

Builder = Callable[..., Any]


def steps(length: int, width: int, value: int = 0) -> np.ndarray:
    """An answer as it travels."""
    return pack_steps(np.full(length, value), width=width)


class TestNodesWhoseDataGrow:
    @pytest.fixture
    def growing(self, owner: Path, node_state: Path) -> Callable[..., Any]:
        """Nodes of 5, 6, ... users; the first has one more once the run has begun."""
        come = [0]

        def load(context: Context) -> Users:
            node = int(context.node_config["partition-id"])
            return make_users(5 + node + (come[0] if node == 0 else 0))

        def app(message: Message, context: Context) -> Message:
            """Each message meets a process of its own."""
            fresh = create_client_app(load, embedder=hash_embedder, cache_directory=owner / "cache")
            reply = fresh(message, context)
            if context.node_config["partition-id"] == 0:
                come[0] = 1
            return reply

        def build(nodes: int, **more: Any) -> LoopbackGrid:
            configs = [
                {"partition-id": node, "num-partitions": nodes, "dataset": f"of-{node}"}
                for node in range(nodes)
            ]
            return LoopbackGrid(app, node_configs=configs, **more)  # type: ignore[arg-type]

        return build

    def test_take_no_further_part_and_are_not_charged(
        self, config: Builder, growing: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The server would leave out their answers, which they would have charged."""
        strategy = Probe(config(num_rounds=2, min_users=1, num_nodes=3))
        strategy.start(growing(3, is_simulation=False))
        assert [released.num_users for released in strategy.released] == [13, 13]
        assert [line[wire.words_of(1001)] for line in lines(strategy.run.metrics_file)] == [1, 1]
        assert "when it was asked how many: begin another run" in caplog.text
        assert "without some nodes: 1 x the client app does not understand" in caplog.text
        assert NodeLedger("of-0").account().charges == []
        assert len(NodeLedger("of-1").account().charges) == 2


class TestMisbehavingNodes:
    def run(
        self,
        federation: Builder,
        config: Builder,
        change: Callable[[Message, Message], list[Message]],
    ) -> tuple[Probe, dict[str, Any]]:
        def tamper(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type == wire.PREPARE or reply.metadata.src_node_id != 1:
                return [reply]
            return change(request, reply)

        strategy = Probe(config(num_rounds=1))
        strategy.start(federation(tamper=tamper))
        return strategy, lines(strategy.run.metrics_file)[0]

    def answer(self, request: Message, total: Any, num_users: Any = 6) -> list[Message]:
        arrays = ArrayRecord()
        arrays["total"] = Array(np.asarray(total))
        content = RecordDict(
            {"privsyn.answer": arrays, "privsyn.cohort": ConfigRecord({"num_users": num_users})}
        )
        return [Message(content, reply_to=request)]

    @pytest.mark.parametrize(
        ("total", "num_users", "reason"),
        [
            (np.full(20, np.nan), 6, "wrong type"),
            (np.zeros(20, np.int64), 6, "wrong type"),
            (steps(19, 5), 6, "wrong shape"),
            (steps(20, 4), 6, "wrong shape"),
            (steps(20, 8), 6, "wrong shape"),
            (steps(100, 1).ravel(), 6, "wrong shape"),
            (steps(20, 5), -1, "absurd head-count"),
            (steps(20, 5), 10**9, "absurd head-count"),
            (steps(20, 5), 7, "absurd head-count"),
            (steps(20, 5, 2**38), 6, "outside the bound of its head-count"),
            (steps(20, 5, -(2**38)), 6, "outside the bound of its head-count"),
            (steps(20, 5, 1), 0, "outside the bound of its head-count"),
        ],
    )
    def test_bad_answers_are_counted_and_left_out(
        self, federation: Builder, config: Builder, total: np.ndarray, num_users: int, reason: str
    ) -> None:
        strategy, metrics = self.run(
            federation, config, lambda request, _: self.answer(request, total, num_users)
        )
        assert metrics[f"rejected: {reason}"] == 1
        assert metrics["answers"] == 1
        assert strategy.released[0].num_users == 6

    @pytest.mark.parametrize("kind", ["archive", "cut", "pickled", "empty"])
    def test_bytes_that_are_no_array_are_counted_and_left_out(
        self, federation: Builder, config: Builder, kind: str
    ) -> None:
        """NumPy reads an archive of arrays without an error, and it is no array."""
        file = io.BytesIO()
        if kind == "archive":
            np.savez(file, total=steps(20, 5))
        elif kind == "pickled":
            np.save(file, np.array([{}], dtype=object), allow_pickle=True)
        else:
            np.save(file, steps(20, 5))
        data = {"cut": file.getvalue()[:-7], "empty": b""}.get(kind, file.getvalue())

        def unreadable(request: Message, _: Message) -> list[Message]:
            (sent,) = self.answer(request, steps(20, 5))
            sent.content.array_records["privsyn.answer"]["total"] = Array(
                dtype="uint8", shape=(20, 5), stype="numpy.ndarray", data=data
            )
            return [sent]

        strategy, metrics = self.run(federation, config, unreadable)
        assert metrics["rejected: unreadable array"] == 1
        assert strategy.released[0].num_users == 6
        assert strategy.run.status == "finished"

    def test_extra_records_are_refused(self, federation: Builder, config: Builder) -> None:
        def chatty(request: Message, reply: Message) -> list[Message]:
            reply.content["metrics"] = MetricRecord({"loss": 0.3})
            return [reply]

        _, metrics = self.run(federation, config, chatty)
        assert metrics["rejected: unexpected records"] == 1

    def test_no_array_is_no_answer(self, federation: Builder, config: Builder) -> None:
        bare = RecordDict({"privsyn.answer": ArrayRecord()})
        _, metrics = self.run(federation, config, lambda to, _: [Message(bare, reply_to=to)])
        assert metrics["rejected: no answer"] == 1

    def test_missing_replies_are_counted(self, federation: Builder, config: Builder) -> None:
        _, lost = self.run(federation, config, lambda request, reply: [])
        assert (lost["missing"], lost["answers"], lost["num_users"]) == (1, 1, 6)

    def test_error_reply(
        self, federation: Builder, config: Builder, caplog: pytest.LogCaptureFixture
    ) -> None:
        secret = Error(code=1000, reason="secret diary of user-3")
        _, metrics = self.run(
            federation, config, lambda request, _: [Message(secret, reply_to=request)]
        )
        assert metrics[wire.words_of(1000)] == 1
        assert "diary" not in json.dumps(metrics) + caplog.text

    def test_flowers_own_word_about_a_lost_node(self, federation: Builder, config: Builder) -> None:
        def lost(request: Message, reply: Message) -> list[Message]:
            unavailable = Message(Error(code=5, reason="node unavailable"), reply_to=request)
            unavailable.metadata.__dict__["_src_node_id"] = 999  # as the SuperLink's own replies
            return [unavailable]

        _, metrics = self.run(federation, config, lost)
        assert metrics["an error of Flower"] == 1
        assert (metrics["answers"], metrics["missing"], metrics["num_users"]) == (1, 0, 6)
        assert "rejected: not asked" not in metrics

    def test_a_reply_from_somebody_who_was_not_asked(
        self, federation: Builder, config: Builder
    ) -> None:
        def stranger(request: Message, reply: Message) -> list[Message]:
            reply.metadata.__dict__["_src_node_id"] = 999
            return [reply]

        _, metrics = self.run(federation, config, stranger)
        assert metrics["rejected: not asked"] == 1
        assert (metrics["answers"], metrics["missing"]) == (1, 1)

    def test_second_reply(self, federation: Builder, config: Builder) -> None:
        strategy, metrics = self.run(federation, config, lambda request, reply: [reply, reply])
        assert metrics["rejected: second reply"] == 1
        assert strategy.released[0].num_users == 12

    def test_replies_to_the_preparation_are_checked_too(
        self, federation: Builder, config: Builder
    ) -> None:
        def tamper(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type != wire.PREPARE:
                return [reply]
            roster = reply.content.config_records["privsyn.roster"]
            node = reply.metadata.src_node_id
            if node == 1:
                return [reply, reply]
            if node == 2:
                roster["embedder"] = "another"
            if node == 3:
                roster["num_users"] = -4
            return [] if node == 4 else [reply]

        strategy = Probe(config(num_rounds=1, num_nodes=5, num_users=4))
        strategy.start(federation(num_nodes=5, tamper=tamper))
        # Twelve users on five nodes: nodes 1 and 5 have three and two of them.
        assert strategy.released[0].num_users == 5


def test_nodes_that_can_never_come_are_not_waited_for(federation: Builder, config: Builder) -> None:
    grid = federation()
    grid.all_there = "so many were started"
    with pytest.raises(FederationError, match="nodes are there, 999 were planned; so many were"):
        Probe(config(num_nodes=999)).start(grid)
