"""What noise alone makes of a model: that of the run itself, tried before anybody is asked."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import CyclicSampling, FullParticipation, Phase, Plan
from flower_privsyn.queries import NearestNeighborHistogram, TrainableModel
from flower_privsyn.run.progress import describe, read_progress
from flower_privsyn.strategies import (
    DPFTRL,
    DPFedAvg,
    DPFedAvgConfig,
    DPFTRLConfig,
    PublicMidTraining,
    PublicMidTrainingConfig,
    ReleasedSum,
    State,
)
from flower_privsyn.strategies import _training as federated_training
from flower_privsyn.strategies._training import (
    LOST_BY_CHOICE,
    MOST_LOST,
    NoiseAlone,
    noise_alone,
)
from flower_privsyn.training.local import LocalModel
from tests.support.correlated import noise_matrix
from tests.support.federation import asked, training_nodes
from tests.support.small_runs import small_training

Builder = Callable[..., Any]

#: Few would call it too noisy by its multiplier, and no model bears updates of this length.
FAR = {"noise_multiplier": 0.3, "clip_norm": 30.0, "min_separation": 1}


@pytest.fixture
def people(texts: list[str]) -> Users:
    return Users.from_rows([(f"user-{i}", texts[i]) for i in range(8)])


@pytest.fixture
def ftrl(lstm: Path, tmp_path: Path) -> Callable[..., DPFTRLConfig]:
    return small_training(
        DPFTRLConfig, tmp_path / "run", model=str(lstm), num_rounds=6, min_separation=2
    )


@pytest.fixture
def model(lstm: Path) -> LocalModel:
    return LocalModel(TrainableModel(name=str(lstm)))


def alone(model: LocalModel, plan: Plan, settings: Any) -> NoiseAlone | None:
    """As a run tries it."""
    return noise_alone(
        model,
        plan,
        settings,
        momentum=settings.server_momentum,
        learning_rate=settings.server_learning_rate,
    )


class TestSpread:
    @pytest.mark.parametrize("correlation", ["blt", "banded", "tree"])
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_it_is_that_of_the_matrix(
        self, ftrl: Builder, model: LocalModel, correlation: str, momentum: float
    ) -> None:
        """Steps and noise are linear: the weights of the rounds times the noise matrix."""
        settings = ftrl(
            correlation=correlation,
            server_momentum=momentum,
            server_learning_rate=0.5,
            clip_norm=0.01,
            noise_multiplier=3.0,
            num_users=8,
        )
        (phase,) = DPFTRL(settings).method.phases(8)
        assert phase.factorisation is not None
        weights = [sum(momentum**k for k in range(6 - t)) for t in range(6)]
        exact = np.linalg.norm(np.array(weights) @ noise_matrix(phase.factorisation))
        found = alone(model, Plan(phases=(phase,), delta=1e-3), settings)
        assert found is not None
        assert found.spread == pytest.approx(exact * 0.5 * 3.0 * 0.01 / 4, rel=0.04)

    @pytest.mark.parametrize("strategy", [DPFTRL, DPFedAvg])
    def test_a_run_in_which_nobody_says_anything_moves_as_far(
        self, ftrl: Builder, lstm: Path, tmp_path: Path, people: Users, strategy: Any
    ) -> None:
        build = ftrl
        if strategy is DPFedAvg:
            build = small_training(
                DPFedAvgConfig,
                tmp_path / "run",
                model=str(lstm),
                num_rounds=3,
                sampling="full",
            )
        run = strategy(build(local_learning_rate=1e-9, noise_multiplier=1.0, clip_norm=0.2))
        run.start(training_nodes(people))
        start = LocalModel(TrainableModel(name=str(lstm)))
        end = LocalModel(TrainableModel(name=str(run.run.path / "models" / "final")))
        found = alone(start, run.plan, run.config)
        assert found is not None
        moved = end.parameters - start.parameters
        assert len(moved) > 2000
        assert np.std(moved) == pytest.approx(found.spread, rel=0.06)

    @pytest.mark.parametrize("correlation", ["blt", "tree"])
    def test_public_text_in_the_middle_ends_the_momentum(
        self, lstm: Path, tmp_path: Path, model: LocalModel, correlation: str
    ) -> None:
        settings = small_training(PublicMidTrainingConfig, tmp_path / "run", model=str(lstm))(
            num_rounds=16,
            min_separation=16,
            first_rounds=6,
            correlation=correlation,
            server_momentum=0.9,
            server_learning_rate=0.5,
            noise_multiplier=1.0,
            clip_norm=0.01,
            num_users=64,
        )
        method = PublicMidTraining(settings).method
        phases = method.phases(64)
        (phase,) = phases
        assert phase.factorisation is not None
        # How often the noise of each round is in the sum of all steps.
        weights = np.array([sum(0.9**k for k in range(n - t)) for n in (6, 10) for t in range(n)])
        moved = np.linalg.norm(weights @ noise_matrix(phase.factorisation))
        users = phase.sampling.expected_users
        exact = moved * 0.5 * float(phase.noise_multiplier or 0.0) * 0.01 / users
        found = noise_alone(
            model,
            Plan(phases=phases, delta=1e-3),
            settings,
            momentum=0.9,
            learning_rate=0.5,
            restarts=method.momentum_restarts,
        )
        assert found is not None
        assert found.spread == pytest.approx(exact, rel=0.04)

    def test_noise_of_other_questions_is_not_the_models(
        self, ftrl: Builder, model: LocalModel
    ) -> None:
        settings = ftrl(noise_multiplier=1.0, num_users=8)
        (phase,) = DPFTRL(settings).method.phases(8)
        votes = Phase(
            name="votes",
            rounds=1,
            sampling=FullParticipation(population=8),
            asks=(NearestNeighborHistogram(),),
            noise_multiplier=5.0,
        )
        assert alone(model, Plan(phases=(votes,), delta=1e-3), settings) is None
        later = dataclasses.replace(phase, sampling=_turns(phase, rounds=7))
        found = alone(model, Plan(phases=(votes, later), delta=1e-3), settings)
        by_itself = alone(model, Plan(phases=(phase,), delta=1e-3), settings)
        assert found == by_itself


class TestRefusal:
    def test_a_run_that_would_destroy_its_model_asks_nobody(
        self, ftrl: Builder, people: Users
    ) -> None:
        grid = training_nodes(people)
        strategy = DPFTRL(ftrl(**FAR, server_learning_rate=1.0, accept_noise=False))
        with pytest.raises(ConfigError) as caught:
            strategy.start(grid)
        said = str(caught.value)
        assert "noise alone: without a word of any user" in said
        assert "accept-noise = true" in said
        assert said.endswith("nothing was spent")
        assert asked(grid) == []
        assert not (strategy.run.path / "ledger.jsonl").exists()

    @pytest.mark.parametrize(
        ("after", "refused"),
        [(5.0, False), (5.0 + MOST_LOST, False), (5.6, True), (math.inf, True), (math.nan, True)],
    )
    def test_what_is_too_much(self, after: float, refused: bool) -> None:
        found = NoiseAlone(learning_rate=1.0, spread=0.1, before=5.0, after=after)
        if refused:
            with pytest.raises(ConfigError, match=r"from 5\.00 to .* nats a token"):
                found.refuse(chosen=False, spent="nothing was spent")
        else:
            found.refuse(chosen=False, spent="nothing was spent")

    def test_without_noise_there_is_nothing_to_try(self, ftrl: Builder, model: LocalModel) -> None:
        settings = ftrl(noise_multiplier=0.0, num_users=8)
        (phase,) = DPFTRL(settings).method.phases(8)
        assert alone(model, Plan(phases=(phase,), delta=1e-3), settings) is None


class TestStep:
    """`server-learning-rate` left to the noise."""

    def found(self, build: Builder, model: LocalModel, step: float | None) -> NoiseAlone:
        settings = build(**FAR, server_learning_rate=step, num_users=8)
        (phase,) = DPFTRL(settings).method.phases(8)
        found = alone(model, Plan(phases=(phase,), delta=1e-3), settings)
        assert found is not None
        return found

    def test_it_is_the_longest_at_which_little_is_lost(
        self, ftrl: Builder, model: LocalModel
    ) -> None:
        chosen = self.found(ftrl, model, None)
        assert 0.001 < chosen.learning_rate < 0.5
        assert chosen.lost <= LOST_BY_CHOICE
        assert self.found(ftrl, model, chosen.learning_rate) == chosen
        assert self.found(ftrl, model, chosen.learning_rate * math.sqrt(2)).lost > LOST_BY_CHOICE
        whole = self.found(ftrl, model, 1.0)
        assert whole.lost > MOST_LOST
        assert chosen.spread == pytest.approx(whole.spread * chosen.learning_rate)

    @pytest.mark.parametrize(("clip_norm", "short"), [(0.05, False), (30.0, True)])
    def test_a_short_one_is_worth_a_word(
        self, ftrl: Builder, clip_norm: float, short: bool
    ) -> None:
        settings = ftrl(
            noise_multiplier=0.3, clip_norm=clip_norm, server_learning_rate=None, num_users=8
        )
        method = DPFTRL(settings).method
        said = method.check(Plan(phases=method.phases(8), delta=1e-3), spent="nothing")
        assert said is not None
        assert ("little of what users say is learnt" in said.sentence) == short
        assert said.warning == short

    def test_a_run_takes_it_in_every_round_and_says_so(
        self, ftrl: Builder, people: Users, model: LocalModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = ftrl(**FAR, accept_noise=False, server_learning_rate=None)
        strategy = DPFTRL(settings)
        states, step = {}, strategy.method.step

        def keeping(state: State, release: ReleasedSum, scratch: Path) -> State:
            states[release.round_number] = step(state, release, scratch)
            return states[release.round_number]

        strategy.method.step = keeping  # type: ignore[method-assign]
        strategy.start(training_nodes(people))
        chosen = self.found(ftrl, model, None)
        files = [strategy.run.round_path(number) / "server.json" for number in range(1, 7)]
        taken = [json.loads(file.read_text())["learning_rate"] for file in files]
        assert taken == [chosen.learning_rate] * 6
        assert chosen.describe() in caplog.text
        assert f"server-learning-rate = {chosen.learning_rate:.2g}" in caplog.text
        noted = [describe(note) for note in read_progress(strategy.run.progress_file)]
        (said,) = [note for note in noted if chosen.describe() in note]
        assert said.startswith("warning: ")
        moved = states[5]["parameters"] - states[4]["parameters"]
        assert np.allclose(moved, chosen.learning_rate * states[5]["momentum"], atol=1e-5)

    def killed(self, settings: DPFTRLConfig, people: Users) -> DPFTRL:
        """A run that died once round 2 was released."""

        def dying(state: State, release: ReleasedSum, scratch: Path) -> State:
            if release.round_number == 2:
                raise KeyboardInterrupt
            return step(state, release, scratch)

        strategy = DPFTRL(settings)
        step = strategy.method.step
        strategy.method.step = dying  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            strategy.start(training_nodes(people))
        return strategy

    @pytest.mark.parametrize("now", [0.02, 0.5])
    def test_a_run_that_goes_on_takes_no_longer_one(
        self, ftrl: Builder, people: Users, monkeypatch: pytest.MonkeyPatch, now: float
    ) -> None:
        """The shorter of what it began with, and of what its users leave now."""
        settings = {**FAR, "accept_noise": False, "server_learning_rate": None}
        begun = self.killed(ftrl(**settings), people).method._longest_step
        assert 0.02 < begun < 0.5

        def otherwise(*arguments: Any, **keywords: Any) -> NoiseAlone | None:
            step = now if keywords["learning_rate"] is None else keywords["learning_rate"]
            return noise_alone(*arguments, **{**keywords, "learning_rate": step})

        monkeypatch.setattr(federated_training, "noise_alone", otherwise)
        resumed = DPFTRL(ftrl(**settings, resume=True))
        resumed.start(training_nodes(people))
        taken = [
            json.loads((resumed.run.round_path(number) / "server.json").read_text())
            for number in range(1, 7)
        ]
        shorter = min(begun, now)
        assert [one["learning_rate"] for one in taken] == [begun] * 1 + [shorter] * 5

    def test_a_clip_norm_that_grows_shortens_it(
        self, lstm: Path, tmp_path: Path, people: Users
    ) -> None:
        """Noise grows with the clip norm: what it adds to the model does not."""
        build = small_training(
            DPFedAvgConfig,
            tmp_path / "run",
            model=str(lstm),
            num_rounds=6,
            sampling="full",
            adaptive_clipping=True,
            clip_quantile=1.0,
            clip_learning_rate=1.0,
        )
        settings = build(
            noise_multiplier=0.3, clip_norm=0.05, server_learning_rate=None, local_learning_rate=9.0
        )
        strategy = DPFedAvg(settings)
        strategy.start(training_nodes(people))
        borne = strategy.method._longest_step
        rounds = [
            json.loads((strategy.run.round_path(number) / "server.json").read_text())
            for number in range(1, 7)
        ]
        assert rounds[-1]["clip_norm"] > borne * rounds[0]["clip_norm"]
        for one in rounds:
            expected = min(1.0, borne * 0.05 / one["clip_norm"])
            assert one["learning_rate"] == pytest.approx(expected)
        assert rounds[0]["learning_rate"] == 1.0
        assert rounds[-1]["learning_rate"] < 1.0

    def test_a_negative_number_of_a_run_configuration_leaves_it_to_the_noise(self) -> None:
        known = {"noise-multiplier": 1.0, "num-users": 8, "num-nodes": 2}
        left = DPFTRLConfig.from_run_config({**known, "server-learning-rate": -1.0})
        assert left.server_learning_rate is None
        with pytest.raises(ConfigError, match="server-learning-rate"):
            DPFTRLConfig.from_run_config({**known, "server-learning-rate": 0.0})


class TestLoss:
    def test_the_model_is_as_it_was(self, ftrl: Builder, model: LocalModel) -> None:
        before, weights = model.parameters, model._weights.clone()
        settings = ftrl(noise_multiplier=1.0, clip_norm=10.0, num_users=8)
        (phase,) = DPFTRL(settings).method.phases(8)
        assert alone(model, Plan(phases=(phase,), delta=1e-3), settings) is not None
        assert np.array_equal(model.parameters, before)
        assert bool((model._weights == weights).all())


def _turns(phase: Phase, *, rounds: int) -> CyclicSampling:
    """The turns of a phase, in a run of more rounds."""
    assert isinstance(phase.sampling, CyclicSampling)
    return dataclasses.replace(phase.sampling, rounds=rounds)
