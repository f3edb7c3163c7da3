"""Few messages under way, whatever the federation: silent and late receivers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from flower_privsyn.messages import wire
from flower_privsyn.messages.window import WindowedGrid
from flower_privsyn.testing import LoopbackGrid
from tests.support.probe import Probe
from tests.support.run_files import lines

Builder = Callable[..., Any]


def echo() -> ClientApp:
    app = ClientApp()

    @app.query("echo")
    def answer(message: Message, context: Any) -> Message:
        return Message(RecordDict(), reply_to=message)

    return app


def ask(nodes: Iterable[int]) -> Iterator[Message]:
    for node in nodes:
        yield Message(RecordDict(), dst_node_id=node, message_type="query.echo")


def senders(replies: Iterable[Message]) -> list[int]:
    return [reply.metadata.src_node_id for reply in replies]


class Slow(LoopbackGrid):
    """Keeps the replies of some nodes back."""

    def __init__(self, *args: Any, silent: Iterable[int] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.silent = set(silent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        spoken = [
            name
            for name in message_ids
            if not any(r.metadata.src_node_id in self.silent for r in self._arrived.get(name, []))
        ]
        return super().pull_messages(spoken)


class TestRoom:
    def test_a_grid_may_go_through_the_messages_twice(self) -> None:
        """As that of a deployment does: it names them all before it sends any."""

        class Careful(LoopbackGrid):
            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                assert len(list(messages)) == len(list(messages)) > 0
                return super().push_messages(messages)

        windowed = WindowedGrid(Careful(echo(), num_nodes=5), window=2)
        assert senders(windowed.send_and_receive(ask(range(1, 6)), timeout=60)) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("window", [1, 7, 200, 1000])
    def test_messages_are_built_when_there_is_room(self, window: int) -> None:
        windowed = WindowedGrid(LoopbackGrid(echo(), num_nodes=200), window=window)
        built, answered, most = 0, 0, 0

        def build() -> Iterator[Message]:
            nonlocal built, most
            for message in ask(range(1, 201)):
                built += 1
                most = max(most, built - answered)
                yield message

        for _ in windowed.send_and_receive(build(), timeout=60):
            answered += 1
        assert answered == 200
        assert most == min(window, 200)


class TestSilence:
    def test_silent_nodes_cost_only_their_own_answers(self) -> None:
        grid = Slow(echo(), num_nodes=40, silent=range(1, 9))
        started = time.monotonic()
        replies = senders(
            WindowedGrid(grid, window=4).send_and_receive(ask(range(1, 41)), timeout=1.6)
        )
        # Two windows of silent nodes, each of which holds the others up for a tenth of a second.
        assert replies == list(range(9, 41))
        assert time.monotonic() - started >= 1.6

    def test_what_had_come_by_the_end_is_handed_out(self) -> None:
        grid = LoopbackGrid(echo(), num_nodes=3)
        replies = WindowedGrid(grid).send_and_receive(ask([1, 2, 3]), timeout=0.05)
        assert next(replies).metadata.src_node_id == 1
        time.sleep(0.1)
        assert senders(replies) == [2, 3]

    def test_nobody_is_asked_after_the_end(self) -> None:
        grid = LoopbackGrid(echo(), num_nodes=3)
        replies = WindowedGrid(grid, window=1).send_and_receive(ask([1, 2, 3]), timeout=0.05)
        next(replies)
        time.sleep(0.1)
        assert senders(replies) == []
        assert len(grid.requests) == 1

    def test_a_late_reply_is_no_answer_to_the_next_question(self) -> None:
        grid = Slow(echo(), num_nodes=3, silent=[2])
        windowed = WindowedGrid(grid)
        assert senders(windowed.send_and_receive(ask([1, 2, 3]), timeout=0.2)) == [1, 3]
        assert windowed.take_late() == 0
        grid.silent.clear()
        replies = list(windowed.send_and_receive(ask([1, 2, 3]), timeout=60))
        assert sorted(senders(replies)) == [1, 2, 3]
        assert {reply.metadata.reply_to_message_id for reply in replies} == {
            message.metadata.message_id for message in grid.requests[3:]
        }
        assert windowed.take_late() == 1
        assert windowed.take_late() == 0

    def test_a_reply_that_nobody_asked_for_is_not_handed_out(self) -> None:
        class Careless(Slow):
            def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
                return super().pull_messages(list(self._arrived))  # whatever is there

        grid = Careless(echo(), num_nodes=3, silent=[2])
        windowed = WindowedGrid(grid, window=1)
        assert senders(windowed.send_and_receive(ask([1, 2]), timeout=0.1)) == [1]
        replies = windowed.send_and_receive(ask([3, 1]), timeout=60)
        assert senders([next(replies)]) == [3]
        grid.silent.clear()
        assert senders(replies) == [1]
        assert windowed.take_late() == 1

    def test_late_answers_are_counted_in_the_round_they_come_in(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = Probe(config(num_rounds=3, noise_multiplier=0.0))
        kept: list[Message] = []

        def tamper(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type == wire.PREPARE or reply.metadata.src_node_id != 1:
                return [reply]
            if not kept:
                kept.append(reply)
                return []
            return [reply, kept[0]] if len(strategy.released) == 1 else [reply]

        strategy.start(federation(tamper=tamper))
        assert [release.num_users for release in strategy.released] == [6, 12, 12]
        first, second, third = lines(strategy.run.metrics_file)
        assert (first["answers"], first["missing"]) == (1, 1)
        assert (second["answers"], second["missing"], second["rejected: late reply"]) == (2, 0, 1)
        assert "rejected: late reply" not in {*first, *third}
        assert np.array_equal(strategy.released[1].values, strategy.released[2].values)
        assert strategy.released[0].values.sum() == 18
