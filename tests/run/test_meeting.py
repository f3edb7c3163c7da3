"""Who is there before the first round, and what is said of who is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Error, Message

from flower_privsyn.errors import FederationError
from flower_privsyn.messages import wire
from tests.support.probe import Probe

Builder = Callable[..., Any]

#: Flower's code for a node that it reaches no longer, and a name that no node here has. The
#: SuperLink's own name, by which it answers for such a node, is that of a node in this grid.
_UNAVAILABLE = 5
_NOBODY = 2**60


def gone(node: int) -> Callable[[Message, Message], list[Message]]:
    """Flower answers in its own name for a node that it reaches no longer."""

    def answer(request: Message, reply: Message) -> list[Message]:
        asked = request.metadata.message_type == wire.PREPARE
        if not asked or reply.metadata.src_node_id != node:
            return [reply]
        error = Message(Error(code=_UNAVAILABLE, reason="node unavailable"), reply_to=request)
        vars(error.metadata)["_src_node_id"] = _NOBODY
        return [error]

    return answer


def test_a_node_that_is_gone_is_counted_once_and_as_that(
    federation: Builder, config: Builder
) -> None:
    with pytest.raises(FederationError) as told:
        Probe(config()).start(federation(tamper=gone(2)))
    assert "1 of 2 nodes are not ready (1 x an error of Flower);" in str(told.value)


def test_one_that_is_silent_beside_it_is_still_missed(federation: Builder, config: Builder) -> None:
    def tamper(request: Message, reply: Message) -> list[Message]:
        return [] if reply.metadata.src_node_id == 1 else gone(2)(request, reply)

    with pytest.raises(FederationError, match="2 of 2 nodes are not ready") as told:
        Probe(config(round_timeout=0.3)).start(federation(tamper=tamper))
    assert "1 x an error of Flower" in str(told.value)
    assert "1 x no reply" in str(told.value)


def test_an_answer_of_a_stranger_is_not_asked_for(federation: Builder, config: Builder) -> None:
    def tamper(request: Message, reply: Message) -> list[Message]:
        if request.metadata.message_type != wire.PREPARE or reply.metadata.src_node_id != 2:
            return [reply]
        vars(reply.metadata)["_src_node_id"] = _NOBODY
        return [reply]

    with pytest.raises(FederationError, match="1 x rejected: not asked; 1 x no reply"):
        Probe(config(round_timeout=0.3)).start(federation(tamper=tamper))
