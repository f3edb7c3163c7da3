"""Phases of unequal noise, questions, samplings and correlation, in one ledger with one budget."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest

from flower_privsyn.catalogue import entries
from flower_privsyn.client_apps.guard import NodeGuard
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.errors import ConfigError, NotAllowedError
from flower_privsyn.privacy import (
    BandedToeplitz,
    CyclicSampling,
    FullParticipation,
    Phase,
    Plan,
    PrivacyLedger,
)
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.queries import NearestNeighborHistogram, Query
from flower_privsyn.run.plan import announcement, plan_of
from flower_privsyn.strategies import PrivateSumConfig, Question, State
from tests.support.correlated import noise_matrix
from tests.support.federation import silent_users
from tests.support.probe import Killed, Probe, ProbeMethod, killed_in
from tests.support.run_files import releases

Builder = Callable[..., Any]

DELTA = 1e-5
ROUNDS = 6
FIRST, SECOND = 9.0, 5.0
SALT = "0123456789abcdef" * 2


class ThreePhases(ProbeMethod):
    """Two histograms of unequal noise, then four rounds of banded noise from what is left."""

    once = NearestNeighborHistogram(max_samples=1)
    votes = NearestNeighborHistogram(max_samples=3)

    @property
    def queries(self) -> tuple[Query, ...]:
        return (self.once, self.votes)

    def phases(self, population: int) -> tuple[Phase, ...]:
        everybody = FullParticipation(population)
        turns = CyclicSampling(groups=2, rounds=ROUNDS, salt=SALT, population=population)
        return (
            Phase(
                name="one vote",
                rounds=1,
                sampling=everybody,
                asks=(self.once,),
                noise_multiplier=FIRST,
            ),
            Phase(
                name="three votes",
                rounds=1,
                sampling=everybody,
                asks=(self.votes,),
                noise_multiplier=SECOND,
            ),
            Phase(
                name="turns",
                rounds=4,
                sampling=turns,
                asks=(self.votes,),
                factorisation=BandedToeplitz(rounds=4, coefficients=(1.0, 0.5)),
            ),
        )

    def ask(self, state: State, number: int) -> Question:
        return Question(self.once if number == 1 else self.votes, {"candidates": self.candidates})


def phased(config: Builder, tmp_path: Path, **changes: Any) -> Probe:
    settings: PrivateSumConfig = config(
        **{
            "epsilon": 3.0,
            "delta": DELTA,
            "num_rounds": ROUNDS,
            "max_samples": 3,
            "run_dir": str(tmp_path / "run"),
            **changes,
        }
    )
    return Probe(settings, candidates=5_000, method=ThreePhases)


def spent(path: Path) -> float:
    epsilon = PrivacyLedger.read(path / "ledger.jsonl").spent["epsilon_release"]
    assert epsilon is not None
    return epsilon


class TestThreePhases:
    def test_cost_what_dp_accounting_says_of_them_together(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = phased(config, tmp_path)
        strategy.start(federation())
        turns = strategy.plan.phases[2]
        assert turns.noise_multiplier is not None
        together = turns.noise_multiplier / turns.sensitivity
        accountant = dp_accounting.pld.PLDAccountant()
        for multiplier in (FIRST, SECOND, together):
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        assert spent(tmp_path / "run") == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-3)
        assert 2.999 < spent(tmp_path / "run") <= 3.0
        found = releases(tmp_path / "run")
        assert [line["round"] for line in found] == list(range(1, ROUNDS + 1))
        assert [line["l2_sensitivity"] for line in found] == [1.0, 3.0, 3.0, 3.0, 3.0, 3.0]
        assert [line.get("covered_by") for line in found] == [None, None, None, 3, 3, 3]
        assert [line["sampling"]["method"] for line in found] == ["full"] * 2 + ["cyclic"] * 4

    def test_add_the_noise_of_their_own(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = phased(config, tmp_path)
        strategy.start(federation(silent_users(12)))
        stds = [release.noise_std for release in strategy.released]
        turns = strategy.plan.phases[2]
        assert turns.factorisation is not None
        assert turns.noise_multiplier is not None
        rows = np.linalg.norm(noise_matrix(turns.factorisation), axis=1)
        assert stds[:2] == [FIRST, 3 * SECOND]
        assert stds[2:] == pytest.approx(3 * turns.noise_multiplier * rows)
        for release in strategy.released:
            assert release.values.std() == pytest.approx(release.noise_std, rel=0.05)

    def test_ask_only_what_they_say(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = phased(config, tmp_path)
        other = Question(
            type("Other", (NearestNeighborHistogram,), {"name": "other"})(max_samples=1),
            {"candidates": strategy.method.candidates},
        )
        strategy.method.ask = lambda *_: other  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="does not ask other"):
            strategy.start(federation())
        assert not releases(tmp_path / "run")

    def test_of_another_number_of_rounds_than_the_settings_are_refused(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        grid = federation()
        with pytest.raises(ConfigError, match="num-rounds = 5 differs from the 6 rounds"):
            phased(config, tmp_path, num_rounds=5).start(grid)
        assert grid.requests == []

    def test_are_refused_where_settled_noise_spends_the_budget(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        grid = federation()
        with pytest.raises(ConfigError, match="epsilon 0.5 is spent by the releases"):
            phased(config, tmp_path, epsilon=0.5).start(grid)
        assert grid.requests == []


class TestAnOwner:
    """Who allows what a run will spend lets it begin, and stops one that will spend more."""

    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            ("ctcl", {"sampling": "poisson", "sampling_rate": 0.2, "num_rounds": 10}),
            ("hybrid", {}),
        ],
    )
    def test_of_that_limit_lets_a_run_of_several_phases_begin(
        self, name: str, changes: dict[str, Any]
    ) -> None:
        strategy = entries()[name].strategy
        settings = strategy.config_class(epsilon=1.0, delta=DELTA, num_nodes=2, **changes)
        method = strategy(settings).method
        settled = calibrated(plan_of(method, settings, population=1_000), epsilon=1.0)
        assert len(settled.phases) == 2
        told = announcement(method, settings, settled, behind=0)
        for limit, refused in ((1.001, False), (0.97, True)):
            guard = NodeGuard(NodePolicy(max_epsilon=limit, delta=DELTA), {"dataset": "people"})
            with pytest.raises(NotAllowedError) if refused else contextlib.nullcontext():
                guard.check_plan(told, 7)


class TestSettledNoise:
    def test_that_costs_more_than_the_budget_is_refused_before_anybody_is_asked(
        self, federation: Builder, config: Builder
    ) -> None:
        class Settled(ProbeMethod):
            def phases(self, population: int) -> tuple[Phase, ...]:
                return tuple(
                    Phase(
                        name=name,
                        rounds=1,
                        sampling=FullParticipation(population),
                        asks=self.queries,
                        noise_multiplier=SECOND,
                    )
                    for name in ("one", "another")
                )

        grid = federation()
        settings = config(epsilon=1.0, delta=DELTA, num_rounds=2)
        with pytest.raises(ConfigError, match="together, above the budget of 1:"):
            Probe(settings, method=Settled).start(grid)
        assert grid.requests == []


class TwoStreams(ProbeMethod):
    """Two phases, each with a noise stream of its own."""

    def phases(self, population: int) -> tuple[Phase, ...]:
        return tuple(
            Phase(
                name=name,
                rounds=2,
                sampling=FullParticipation(population),
                asks=self.queries,
                factorisation=BandedToeplitz(rounds=2, coefficients=(1.0, 0.5)),
            )
            for name in ("first", "second")
        )


@pytest.mark.parametrize("number", [None, 2, 3])
def test_a_stream_ends_with_its_phase_whoever_goes_on(
    federation: Builder, config: Builder, tmp_path: Path, number: int | None
) -> None:
    def run(**changes: Any) -> Probe:
        return Probe(config(epsilon=3.0, delta=DELTA, num_rounds=4, **changes), method=TwoStreams)

    strategy = run()
    if number is None:
        strategy.start(federation())
    else:
        with pytest.raises(Killed):
            killed_in(strategy, number).start(federation())
        # The next round is the other stream's: the memory of this one is still on the disk.
        assert (tmp_path / "run" / "noise.npz").exists()
        strategy = run(resume=True)
        strategy.start(federation())
    assert spent(tmp_path / "run") == pytest.approx(3.0, rel=1e-3)
    assert not (tmp_path / "run" / "noise.npz").exists()
    assert strategy.run.status == "finished"


class TestPlan:
    def phase(self, name: str, **changes: Any) -> Phase:
        values = {"rounds": 2, "sampling": FullParticipation(40), "asks": (ThreePhases.votes,)}
        return Phase(name=name, **{**values, **changes})

    def test_open_phases_share_what_is_left(self) -> None:
        plan = Plan(
            phases=(self.phase("a", noise_multiplier=6.0), self.phase("b"), self.phase("c")),
            delta=DELTA,
        )
        settled = plan.with_multiplier(plan.calibrated_multiplier(2.0))
        assert not settled.open
        assert 1.999 < settled.epsilon() <= 2.0
        first, second, third = settled.phases
        assert first.noise_multiplier == 6.0
        assert second.noise_multiplier == third.noise_multiplier

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"rounds": 0}, "rounds must be"),
            ({"asks": ()}, "asks nothing"),
            ({"noise_multiplier": -1.0}, "noise-multiplier must be"),
            ({"factorisation": BandedToeplitz(rounds=5, coefficients=(1.0, 0.5))}, "of 5"),
        ],
    )
    def test_a_phase_that_cannot_be(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            self.phase("a", **changes)

    def test_phases_that_cannot_be_together(self) -> None:
        with pytest.raises(ConfigError, match="phases of different names"):
            Plan(phases=(self.phase("a"), self.phase("a")), delta=DELTA)
        turns = CyclicSampling(groups=2, rounds=3, salt=SALT)
        assert turns.min_separation == 2
        with pytest.raises(ConfigError, match="is for 3 rounds, and its last round is number 4"):
            Plan(phases=(self.phase("a"), self.phase("b", sampling=turns)), delta=DELTA)
