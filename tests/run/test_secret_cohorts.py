"""Who was drawn stands in no file of a run, and neither the end of a run nor its length tells it.

The same run twice, with one user drawn in every round and with somebody else in that user's place.
What is released is replaced by the same vector in both, so any byte that differs comes past it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Error, Message

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import FederationError, LedgerError
from flower_privsyn.messages import wire
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    PoissonSampling,
    PrivacyLedger,
)
from flower_privsyn.run.federation import ROLL_CALL, roll_call
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.ledgers import begin
from tests.support.probe import Probe
from tests.support.repeating import Repeating, stop
from tests.support.run_files import contents, lines, releases

Builder = Callable[..., Any]

#: Users on each node. The first node hosts one user, who is drawn or not.
SMALL_AND_LARGE = (1, 39)
ONE_EACH = (1,) * 12

FIXED: dict[str, Any] = {"sampling": "fixed-size", "sample_size": 4}
POISSON: dict[str, Any] = {"sampling": "poisson", "sampling_rate": 0.5}


def silent_nodes(
    silent: Collection[int], failing: Collection[int]
) -> Callable[[Message, Message], list[Message]]:
    """Loses the answers of some nodes, and has others fail, in every round."""

    def answer(request: Message, reply: Message) -> list[Message]:
        node = reply.metadata.src_node_id
        if request.metadata.message_type == wire.PREPARE:
            return [reply]
        if node in failing:
            return [Message(Error(code=1000, reason="x"), reply_to=request)]
        return [] if node in silent else [reply]

    return answer


class Draw:
    """Runs in which one user is drawn in every round, or in none."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, config: Builder) -> None:
        self.folder, self.patch, self.config = folder, monkeypatch, config

    def run(
        self,
        heads: tuple[int, ...],
        *,
        drawn: bool,
        silent: Collection[int] = (),
        failing: Collection[int] = (),
        **changes: Any,
    ) -> dict[str, bytes]:
        """Run three rounds and return what stands in the files of the run directory."""

        def load(context: Context) -> Users:
            node = int(context.node_config["partition-id"])
            first = sum(heads[:node])
            return Users.from_rows(
                (f"user-{i}", "the canary sings") for i in range(first, first + heads[node])
            )

        flips = itertools.count()

        def coins(_: Any, user_ids: Collection[str], **rest: Any) -> Any:
            # A server that flips the coin of a node's only user has no name for that user.
            absent = {"user-0"}
            if list(user_ids) == [""] and next(flips) % heads.count(1) == 0:
                absent.add("")
            return np.array([drawn or name not in absent for name in user_ids])

        self.patch.setattr(PoissonSampling, "participants", coins)
        self.patch.setattr(FixedSizeSampling, "allocate", lambda *_: [1, 3] if drawn else [0, 4])
        stop(self.patch)
        app = create_client_app(load, embedder=hash_embedder, cache_directory=self.folder / "cache")
        grid = LoopbackGrid(app, num_nodes=len(heads), tamper=silent_nodes(silent, failing))
        strategy = Probe(
            self.config(noise_multiplier=1.0, accountant="rdp", num_nodes=len(heads), **changes),
            random=Repeating(7),
        )
        with suppress(FederationError):
            strategy.start(grid)
        path = strategy.run.path
        found = contents(path)
        name = "drawn" if drawn else "not-drawn"
        strategy.run.owner.path.rename(self.folder / f"{name}.owner")
        path.rename(self.folder / name)
        return found


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Builder) -> Draw:
    return Draw(tmp_path, monkeypatch, config)


@pytest.mark.parametrize(
    ("silent", "failing"),
    [((), ()), ((1,), ()), ((2,), ()), ((1,), (2,)), ((), (1,))],
)
@pytest.mark.parametrize("sampling", [FIXED, POISSON])
@pytest.mark.usefixtures("same_release")
def test_no_byte_tells_who_was_drawn(
    draw: Draw, sampling: dict[str, Any], silent: Collection[int], failing: Collection[int]
) -> None:
    """One node of one user and one of 39."""
    left, right = (
        draw.run(SMALL_AND_LARGE, drawn=drawn, silent=silent, failing=failing, **sampling)
        for drawn in (True, False)
    )
    assert sorted(left) == sorted(right)
    assert [name for name in left if left[name] != right[name]] == []
    assert "ledger.jsonl" in left
    assert b"num_nodes" not in left["metrics.jsonl"]
    ended = len({1, 2} - {*silent, *failing}) == 0
    assert len([name for name in left if name.endswith("release.npy")]) == (2 if ended else 3)


@pytest.mark.usefixtures("same_release")
def test_the_length_of_a_run_does_not_tell_who_was_drawn(draw: Draw) -> None:
    """Twelve nodes of one user, all silent but the first, whose user is drawn or not."""
    left, right = (
        draw.run(ONE_EACH, drawn=drawn, silent=range(2, 13), num_rounds=4, **POISSON)
        for drawn in (True, False)
    )
    assert sorted(left) == sorted(right)
    assert [name for name in left if left[name] != right[name]] == []
    assert len([name for name in left if name.endswith("release.npy")]) == 4


@pytest.mark.usefixtures("same_release")
def test_a_warning_of_silence_does_not_tell_who_was_drawn(
    draw: Draw, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first of three nodes is not on the roll call, as one of more than 64 of one user."""
    monkeypatch.setattr("flower_privsyn.run.federation.roll_call", lambda *_, **__: frozenset({2}))
    left, right = (
        draw.run((1, 1, 1), drawn=drawn, silent=(2, 3), **POISSON) for drawn in (True, False)
    )
    assert sorted(left) == sorted(right)
    assert [name for name in left if left[name] != right[name]] == []
    assert "is released without some nodes" in caplog.text  # the owner is told


def test_a_draw_is_in_the_sum(draw: Draw) -> None:
    """Otherwise nothing could differ: the same two runs with the release as it is."""
    left, right = (draw.run(SMALL_AND_LARGE, drawn=drawn, silent=(2,), **FIXED) for drawn in (1, 0))
    assert left["rounds/0001/release.npy"] != right["rounds/0001/release.npy"]


def test_a_fixed_size_cohort_that_falls_silent_is_charged_and_ends_the_run(
    config: Builder, federation: Builder, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = Probe(config(noise_multiplier=1.0, accountant="rdp", num_rounds=5, **FIXED))
    with pytest.raises(FederationError, match="two rounds in a row were lost.*they are charged"):
        strategy.start(federation(tamper=silent_nodes((1, 2), ())))
    charged = releases(strategy.run.path)
    assert [(line["round"], line["num_users"]) for line in charged] == [(1, None), (2, None)]
    assert all("answers" not in line for line in lines(strategy.run.metrics_file))
    assert "round 1 is released without some nodes: 2 x no reply" in caplog.text


class TestRollCall:
    """Who is asked in every round, whoever is drawn."""

    def test_nodes_of_several_users_and_some_of_the_others(self) -> None:
        roster = dict.fromkeys(range(200), 1) | {500: 2, 501: 0, 502: 30}
        random = InsecureRandom(0)
        chosen = [roll_call(roster, connected={*range(100, 600)}, random=random) for _ in range(2)]
        for nodes in chosen:
            assert {500, 502} < nodes
            single = nodes - {500, 502}
            assert len(single) == ROLL_CALL
            assert single <= set(range(100, 200))
        assert chosen[0] != chosen[1]

    def test_nodes_that_are_not_connected(self) -> None:
        roster = {1: 1, 2: 1, 3: 5}
        assert roll_call(roster, connected=(), random=InsecureRandom(0)) == {3}
        assert roll_call(roster, connected=(2, 9), random=InsecureRandom(0)) == {2, 3}


class TestRefusals:
    @pytest.mark.parametrize(
        ("sampling", "secret"),
        [
            (FullParticipation(population=9), False),
            (PoissonSampling(1.0, population=9), False),
            (PoissonSampling(0.9, population=9), True),
            (FixedSizeSampling(9, population=9), False),
            (FixedSizeSampling(8, population=9), True),
        ],
    )
    def test_the_ledger_discards_no_secret_cohort_and_keeps_no_head_count(
        self, tmp_path: Path, sampling: Any, secret: bool
    ) -> None:
        with PrivacyLedger.create(
            tmp_path / "ledger.jsonl", delta=1e-3, epsilon_budget=None, accountant="rdp"
        ) as ledger:
            for number in (1, 2):
                begin(
                    ledger,
                    round=number,
                    query="q",
                    mechanism=GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0),
                    sampling=sampling,
                    planned_users=9,
                )
            assert ledger.charge(round=1, num_users=5)["num_users"] == (None if secret else 5)
            if secret:
                with pytest.raises(LedgerError, match="secret cohort"):
                    ledger.discard(round=2, num_users=0, reason="nobody")
            else:
                ledger.discard(round=2, num_users=0, reason="nobody")
