"""A simulation refuses a recipe that puts one user on more nodes than the run declares."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.node_users import users_of_node
from flower_privsyn.data import Users
from flower_privsyn.messages import wire
from flower_privsyn.privacy import FullParticipation, GaussianMechanism
from flower_privsyn.testing import hash_embedder
from tests.support import answering
from tests.support.federation import make_users
from tests.support.questions import DATA, ask
from tests.support.text_lengths import TextLengths

RUN = 2**62 + 11
DEALS = {1: ["a", "b"], 2: ["c", "shared"], 3: ["shared", "d"]}


def where(node: int, *, run: int = RUN, nodes: int = 3) -> Context:
    own = {"partition-id": node - 1, "num-partitions": nodes}
    return answering.where(own, run_id=run, node_id=node)


def partition(context: Context) -> Users:
    return Users.from_rows((user, "court judge") for user in DEALS[context.node_id])


@pytest.fixture
def prepare(tmp_path: Path) -> Callable[..., Message]:
    app = create_client_app(partition, embedder=hash_embedder, cache_directory=tmp_path / "cache")

    def send(context: Context, *, most: int = 1, to: ClientApp = app) -> Message:
        data = replace(DATA, max_nodes_per_user=most, held_out_fraction=0.0)
        return answering.prepare(to, data, context)

    return send


def test_a_user_on_two_nodes_is_refused(
    prepare: Callable[..., Message], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    replies = [prepare(where(node)) for node in (1, 2, 3)]
    assert [reply.has_error() for reply in replies] == [False, False, True]
    assert replies[2].error.code == wire.ClientErrorCode.DATA_UNAVAILABLE
    assert wire.unexpected_records(replies[2]) == []
    assert caplog.messages == [
        "the app's recipe puts users on 2 nodes, where max-nodes-per-user = 1: give every node "
        "users of its own, or set max-nodes-per-user, for more noise."
    ]
    # Another process of the node, and the same node again, find what was noted.
    assert prepare(where(3)).has_error()
    assert not prepare(where(1)).has_error()
    folder = tmp_path / "cache"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert b"shared" not in next(folder.glob("*.sqlite")).read_bytes()


def test_a_user_on_as_many_nodes_as_declared(prepare: Callable[..., Message]) -> None:
    assert not any(prepare(where(node), most=2).has_error() for node in (1, 2, 3))


def test_another_run_deals_anew(prepare: Callable[..., Message]) -> None:
    assert not prepare(where(2)).has_error()
    assert not prepare(where(3, run=RUN + 1)).has_error()


def test_a_deployment_cannot_tell(prepare: Callable[..., Message]) -> None:
    # Also where nodes on one machine name partitions: whom two owners have in common is theirs.
    with simulated(False):
        assert not any(prepare(where(node)).has_error() for node in (2, 3))


def test_the_default_recipe_deals_every_user_to_one_node(
    prepare: Callable[..., Message], tmp_path: Path
) -> None:
    everyone = make_users(50)
    dealt = [everyone.partition(partition_id=node, num_partitions=7).user_ids for node in range(7)]
    assert sorted(user for own in dealt for user in own) == sorted(everyone.user_ids)
    path = tmp_path / "users.jsonl"
    path.write_text('{"client_id": "a", "text": "x"}\n{"client_id": "b", "text": "y"}\n')
    app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "default")
    for node in (1, 2):
        context = where(node, nodes=2)
        context.run_config["data"] = str(path)
        assert not prepare(context, to=app).has_error()
    assert not list((tmp_path / "default").glob("*.sqlite"))
    # A file of its own for every node is a recipe like another one.
    own = create_client_app(users_of_node, embedder=hash_embedder, cache_directory=tmp_path / "own")
    answers = []
    for node in (1, 2):
        context = where(node)
        context.node_config["data"] = str(path)
        answers.append(prepare(context, to=own).has_error())
    assert answers == [False, True]


TEXT = replace(DATA, reads="text", held_out_fraction=0.0)


def ask_about_text(app: ClientApp, context: Context) -> Message:
    """A question to a process that was not there when the nodes were prepared."""
    query = TextLengths()
    asked = ask(
        query=query,
        broadcast={},
        data=TEXT,
        sampling=FullParticipation(),
        mechanism=GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=query.clip_norm),
        roster_users=3,
    )
    return answering.put(app, asked, context)


def test_a_recipe_that_deals_otherwise_in_another_process_is_refused(tmp_path: Path) -> None:
    def process(deals: dict[int, list[str]]) -> ClientApp:
        def load(context: Context) -> Users:
            return Users.from_rows((user, "a court") for user in deals[context.node_id])

        return create_client_app(load, cache_directory=tmp_path, queries=[TextLengths])

    first = process({1: ["a", "b"], 2: ["c", "d"]})
    for node in (1, 2):
        assert not answering.prepare(first, TEXT, where(node, nodes=2)).has_error()
    late = ask_about_text(process({1: ["a", "c"], 2: ["b", "d"]}), where(1, nodes=2))
    assert late.has_error()
    assert late.error.code == wire.ClientErrorCode.DATA_UNAVAILABLE


def test_a_list_that_cannot_be_kept_is_no_permission(
    prepare: Callable[..., Message], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file in the way")
    # Nobody is said to be on two nodes.
    assert prepare(where(1)).error.code == wire.ClientErrorCode.INTERNAL


def test_what_is_noted_of_a_run_that_takes_longer_stays(
    prepare: Callable[..., Message], tmp_path: Path
) -> None:
    prepare(where(2))
    folder = tmp_path / "cache"
    then = time.time() - 8 * 24 * 3600
    os.utime(folder / f"partition-{RUN}.sqlite", (then, then))
    assert prepare(where(3)).has_error()
    # Another run sweeps what was not looked at for a week.
    assert not prepare(where(1, run=RUN + 1)).has_error()
    assert len(list(folder.glob("*.sqlite"))) == 2
    os.utime(folder / f"partition-{RUN}.sqlite", (then, then))
    assert not prepare(where(2, run=RUN + 1)).has_error()
    assert [file.name for file in folder.glob("*.sqlite")] == [f"partition-{RUN + 1}.sqlite"]
