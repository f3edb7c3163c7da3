"""Nodes of this machine answer by processes; one that ends costs the answer it was at alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flower_privsyn.host.grid import LocalGrid, flower_identity

_CLIENT = """
import os
import signal

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.guard import in_simulation

app = ClientApp()


class Own:
    pass  # the server has no such module


@app.query()
def answer(message, context):
    does = message.content["asked"]["does"]
    if does == "raise":
        raise ValueError("what somebody wrote")
    if does == "end":
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "keep":
        context.run_config["own"] = Own()
    known = context.state.setdefault("known", ConfigRecord({"times": 0}))
    known["times"] += 1
    told = {
        "times": known["times"],
        "node": context.node_config["partition-id"],
        "nodes": context.node_config["num-partitions"],
        "note": context.run_config["note"],
        "simulated": in_simulation(),
        "threads": os.environ["OMP_NUM_THREADS"],
    }
    return Message(RecordDict({"told": ConfigRecord(told)}), reply_to=message)
"""

Asked = Callable[..., list[Message]]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Asked]:
    (tmp_path / "nodes_that_tell.py").write_text(_CLIENT)
    grids: list[LocalGrid] = []

    def asked(
        *does: str, grid: LocalGrid | None = None, app: str = "nodes_that_tell"
    ) -> list[Message]:
        if not grids:
            grids.append(
                LocalGrid(
                    tmp_path, f"{app}:app", num_nodes=3, run_config={"note": "a text"},
                    run_id=7, processes=2,
                )
            )  # fmt: skip
        messages = [
            Message(RecordDict({"asked": ConfigRecord({"does": one})}), node, "query")
            for node, one in enumerate(does, start=1)
        ]
        replies = grids[0].send_and_receive(messages, timeout=120.0)
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    with flower_identity(run_id=7):
        yield asked
    for grid in grids:
        grid.close()


def test_every_node_answers_by_its_own_context(ask: Asked) -> None:
    before = dict(os.environ)
    for times in (1, 2):
        told = [reply.content.config_records["told"] for reply in ask("tell", "tell", "tell")]
        assert [dict(one) for one in told] == [
            {
                "times": times,
                "node": node,
                "nodes": 3,
                "note": "a text",
                "simulated": True,
                "threads": "1",
            }
            for node in range(3)
        ]
    assert dict(os.environ) == before  # one thread is for them alone


def test_a_node_that_fails_costs_its_answer_alone(ask: Asked) -> None:
    raised, ended, unread = ask("raise", "end", "keep")
    assert (raised.error.code, raised.error.reason) == (2, "ValueError")
    assert ended.error.code == 8
    assert (unread.error.code, unread.error.reason.split()[-1]) == (8, "ModuleNotFoundError")
    # Another process has taken the place of the one that ended.
    assert all(reply.has_content() for reply in ask("tell", "tell", "tell"))


def test_an_app_that_cannot_be_loaded_answers_with_flowers_error(ask: Asked) -> None:
    assert [reply.error.code for reply in ask("tell", app="no_such_module")] == [1]
