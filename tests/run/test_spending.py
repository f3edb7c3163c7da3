"""Budget is never spent without a word: what ends or refuses a run before or between releases."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.messages import wire
from flower_privsyn.privacy import CyclicSampling, FullParticipation
from flower_privsyn.run import how_to_resume
from flower_privsyn.run.settings import default_least_users
from flower_privsyn.strategies import PrivateSumConfig
from tests.support.federation import make_users, rounds_asked, silent
from tests.support.probe import Probe
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


def events(run: Path) -> list[str]:
    return [line["event"] for line in lines(run / "ledger.jsonl")]


class TestSilence:
    @pytest.mark.parametrize("secret", [False, True])
    def test_of_a_node_is_said_once_and_to_whom_it_may_be(
        self,
        federation: Builder,
        config: Builder,
        caplog: pytest.LogCaptureFixture,
        secret: bool,
    ) -> None:
        """Who failed is the server's owner's to know, and in no file of the run."""

        def failing(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type == wire.PREPARE or reply.metadata.src_node_id != 1:
                return [reply]
            return [wire.error_reply(wire.ClientErrorCode.NOT_ALLOWED, request)]

        drawn = {"sampling": "poisson", "sampling_rate": 0.5} if secret else {}
        strategy = Probe(config(num_rounds=3, accountant="rdp", **drawn))
        strategy.start(federation(tamper=failing))
        assert len([r for r in caplog.records if "without some nodes" in r.getMessage()]) == 1
        files = [file for file in strategy.run.path.rglob("*") if file.is_file()]
        assert not any(b"without some" in file.read_bytes() for file in files)

    @pytest.mark.parametrize("seconds", [0, -5, "60", math.nan])
    def test_is_waited_for_or_nothing_is_spent(
        self, federation: Builder, config: Builder, tmp_path: Path, seconds: Any
    ) -> None:
        grid = federation()
        with pytest.raises(ConfigError, match=r"timeout must be .*got"):
            Probe(config(sampling="poisson", sampling_rate=0.5)).start(grid, timeout=seconds)
        assert grid.requests == []
        assert not (tmp_path / "run").exists()

    def test_nodes_that_fall_silent_after_preparation_cost_nothing_and_end_the_run(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = Probe(config(num_rounds=5))
        with pytest.raises(FederationError) as caught:
            strategy.start(federation(tamper=silent()))
        assert str(caught.value) == (
            "two rounds in a row were lost: 0 users on 0 of 2 nodes answered, 6 are required: "
            "2 x no reply; they cost nothing; bring the nodes back and continue with "
            f"{how_to_resume(tmp_path / 'run')}"
        )
        assert events(tmp_path / "run") == ["opened", *2 * ["started", "discarded"]]
        assert strategy.released == []
        assert (strategy.run.status, strategy.run.error) == ("failed", str(caught.value))
        assert [line["epsilon_release"] for line in lines(strategy.run.metrics_file)] == [0.0, 0.0]

    def test_correlated_rounds_are_not_asked_again(
        self, federation: Builder, votes: Builder, tmp_path: Path
    ) -> None:
        with pytest.raises(FederationError, match="two rounds in a row were lost"):
            Probe(votes(epsilon=2.0)).start(federation(tamper=silent(3, 4)))
        grid = federation()
        strategy = Probe(votes(epsilon=2.0, resume=True))
        strategy.start(grid)
        assert rounds_asked(grid) == [5, 6, 7, 8]
        assert [line["round"] for line in releases(tmp_path / "run")] == [1, 2, 5, 6, 7, 8]

    @pytest.mark.parametrize(
        ("changes", "answering", "released"),
        [
            ({}, 6, True),  # half of twelve
            ({}, 5, False),
            ({"min_users": 0}, 1, True),
            ({"min_users": 0}, 0, False),  # pure noise of nobody
            ({"min_users": 9}, 8, False),
            ({"sampling": "fixed-size", "sample_size": 12}, 5, False),
            ({"sampling": "poisson", "sampling_rate": 1.0}, 5, False),
        ],
    )
    def test_how_many_answers_a_public_cohort_needs(
        self,
        federation: Builder,
        config: Builder,
        changes: dict[str, Any],
        answering: int,
        released: bool,
    ) -> None:
        quiet = silent(1, nodes=tuple(range(answering + 1, 13)), times=1)
        strategy = Probe(config(num_rounds=2, num_nodes=12, **changes))
        strategy.start(federation(num_nodes=12, tamper=quiet))
        # One that nobody answered is asked again at once.
        rounds = [1, 2] if released or not answering else [2]
        assert [release.round_number for release in strategy.released] == rounds
        assert ("discarded" in events(strategy.run.path)) is not released

    def test_groups_that_vary_by_chance_are_not_held_to_half_of_the_average(self) -> None:
        def group(size: int) -> int:
            return default_least_users(
                CyclicSampling(groups=10, rounds=10, salt="00" * 16, population=10 * size)
            )

        assert (group(4), group(16), group(25), group(1000)) == (1, 1, 5, 500)
        assert default_least_users(FullParticipation(population=1)) == 1
        assert default_least_users(FullParticipation(population=5)) == 3

    def test_more_than_can_answer_is_refused(self, federation: Builder, config: Builder) -> None:
        with pytest.raises(ConfigError, match='min-users = 3 needs.*got "fixed-size"'):
            config(sampling="fixed-size", sample_size=7, min_users=3)
        with pytest.raises(FederationError, match="13 were planned"):
            Probe(config(min_users=13)).start(federation())
        assert PrivateSumConfig.from_run_config({"epsilon": 1.0, "min-users": -1}).min_users is None

    def test_a_run_of_accidents_alone_has_no_result(
        self, federation: Builder, votes: Builder
    ) -> None:
        strategy = Probe(votes(num_rounds=1, min_separation=1))
        with pytest.raises(FederationError, match="no round was released"):
            strategy.start(federation(tamper=silent()))
        assert not (strategy.run.path / "synthetic.jsonl").exists()


class TestNoiseAgainstUsers:
    @pytest.mark.parametrize("users", [1, 5])
    def test_so_few_users_are_refused_before_anything_is_spent(
        self, federation: Builder, config: Builder, users: int
    ) -> None:
        grid = federation(make_users(users))
        strategy = Probe(config(epsilon=8.0, num_rounds=3, accept_noise=False))
        with pytest.raises(ConfigError, match="larger epsilon .* set accept-noise = true"):
            strategy.start(grid)
        assert rounds_asked(grid) == []
        assert not strategy.run.ledger_file.exists()
        # The same run goes on once somebody has said so.
        again = Probe(config(epsilon=8.0, num_rounds=3, accept_noise=True, resume=True))
        again.start(federation(make_users(users)))
        assert len(again.released) == 3

    @pytest.mark.parametrize(
        ("noise_multiplier", "changes", "refused"),
        [
            (1.21, {}, True),
            (1.19, {}, False),
            (0.0, {}, False),
            (0.61, {"sampling": "poisson", "sampling_rate": 0.5}, True),
            (0.59, {"sampling": "poisson", "sampling_rate": 0.5}, False),
            (0.51, {"sampling": "fixed-size", "sample_size": 5}, True),
        ],
    )
    def test_where_the_line_is(
        self,
        federation: Builder,
        config: Builder,
        noise_multiplier: float,
        changes: dict[str, Any],
        refused: bool,
    ) -> None:
        """Twelve users, ten standard deviations."""
        strategy = Probe(
            config(noise_multiplier=noise_multiplier, num_rounds=1, accept_noise=False, **changes)
        )
        if refused:
            with pytest.raises(ConfigError, match="larger epsilon .* set accept-noise = true"):
                strategy.start(federation())
        else:
            strategy.start(federation())
            assert len(strategy.released) == 1
