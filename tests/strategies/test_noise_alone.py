"""What noise alone makes of a model: that of the run itself, tried before anybody is asked."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import Phase, Plan
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
from flower_privsyn.strategies._noise_alone import LOST_BY_CHOICE, MOST_LOST, NoiseAlone
from flower_privsyn.strategies._training import FederatedTraining
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


def planned(settings: Any) -> tuple[Phase, Plan]:
    """The only phase of a run of eight users, and its plan."""
    (phase,) = [settings.phase(8, asks=(settings.question(settings.clip_norm),))]
    return phase, Plan(phases=(phase,), delta=1e-3)


def alone(model: LocalModel, settings: Any, plan: Plan | None = None) -> NoiseAlone:
    momentum_after = FederatedTraining(settings).momentum_after
    found = NoiseAlone.of(model, plan or planned(settings)[1], settings, momentum_after)
    assert found is not None
    return found


def of_rounds(strategy: Any, key: str) -> list[float]:
    """What the rounds' `server.json` say."""
    numbers = range(1, strategy.config.num_rounds + 1)
    files = [strategy.run.round_dir(number) / "server.json" for number in numbers]
    return [json.loads(file.read_text())[key] for file in files]


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
            clip_norm=0.01,
            noise_multiplier=3.0,
        )
        phase, plan = planned(settings)
        assert phase.factorisation is not None
        weights = [sum(momentum**k for k in range(6 - t)) for t in range(6)]
        exact = np.linalg.norm(np.array(weights) @ noise_matrix(phase.factorisation))
        assert alone(model, settings, plan).spread == pytest.approx(
            exact * 3.0 * 0.01 / 4, rel=0.04
        )

    def test_public_text_in_the_middle_ends_the_momentum(
        self, lstm: Path, tmp_path: Path, model: LocalModel
    ) -> None:
        settings = small_training(PublicMidTrainingConfig, tmp_path / "run", model=str(lstm))(
            num_rounds=16,
            min_separation=16,
            first_rounds=6,
            server_momentum=0.9,
            noise_multiplier=1.0,
            clip_norm=0.01,
        )
        phase, plan = planned(settings)
        assert phase.factorisation is not None
        # How often the noise of each round is in the sum of all steps.
        weights = np.array([sum(0.9**k for k in range(n - t)) for n in (6, 10) for t in range(n)])
        moved = np.linalg.norm(weights @ noise_matrix(phase.factorisation))
        exact = moved * float(phase.noise_multiplier or 0.0) * 0.01 / phase.sampling.expected_users
        momentum_after = PublicMidTraining(settings).method.momentum_after
        found = NoiseAlone.of(model, plan, settings, momentum_after)
        assert found is not None
        assert found.spread == pytest.approx(exact, rel=0.04)


class TestRefusal:
    def test_a_run_that_would_destroy_its_model_asks_nobody(
        self, ftrl: Builder, people: Users
    ) -> None:
        grid = training_nodes(people)
        strategy = DPFTRL(ftrl(**FAR, server_learning_rate=1.0, accept_noise=False))
        with pytest.raises(ConfigError, match="accept-noise = true .*; nothing was spent"):
            strategy.start(grid)
        assert asked(grid) == []
        assert not (strategy.run.path / "ledger.jsonl").exists()

    @pytest.mark.parametrize(
        ("lost", "refused"),
        [(0.0, False), (MOST_LOST, False), (0.6, True), (math.inf, True), (math.nan, True)],
    )
    def test_what_is_too_much(
        self,
        ftrl: Builder,
        model: LocalModel,
        monkeypatch: pytest.MonkeyPatch,
        lost: float,
        refused: bool,
    ) -> None:
        monkeypatch.setattr(NoiseAlone, "lost", lambda *_: lost)
        settings = ftrl(noise_multiplier=1.0, server_learning_rate=1.0, accept_noise=False)
        found = alone(model, settings)
        if refused:
            with pytest.raises(ConfigError, match="accept-noise"):
                found.diagnostic(1.0, chosen=False, spent="nothing was spent")
        else:
            assert found.diagnostic(1.0, chosen=False, spent="").level == "fine"


class TestStep:
    """`server-learning-rate` left to the noise."""

    def test_it_is_the_longest_at_which_little_is_lost(
        self, ftrl: Builder, model: LocalModel
    ) -> None:
        before, weights = model.parameters, model._weights.clone()
        found = alone(model, ftrl(**FAR))
        chosen = found.longest_step()
        assert 0.001 < chosen < 0.5
        assert found.lost(chosen) <= LOST_BY_CHOICE < found.lost(chosen * math.sqrt(2))
        assert found.lost(1.0) > MOST_LOST
        # The model is as it was.
        assert np.array_equal(model.parameters, before)
        assert bool((model._weights == weights).all())

    def test_a_run_takes_it_in_every_round_and_says_so(
        self, ftrl: Builder, people: Users, model: LocalModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = ftrl(**FAR, accept_noise=False)
        strategy = DPFTRL(settings)
        states, step = {}, strategy.method.step

        def keeping(state: State, release: ReleasedSum, scratch: Path) -> State:
            states[release.round_number] = step(state, release, scratch)
            return states[release.round_number]

        strategy.method.step = keeping  # type: ignore[method-assign]
        strategy.start(training_nodes(people))
        chosen = alone(model, settings).longest_step()
        assert of_rounds(strategy, "learning_rate") == [chosen] * 6
        warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert [one for one in warned if f"server-learning-rate = {chosen:.2g}" in one]
        moved = states[5]["parameters"] - states[4]["parameters"]
        assert np.allclose(moved, chosen * states[5]["momentum"], atol=1e-5)

    @pytest.mark.parametrize("now", [0.02, 0.5])
    def test_a_run_that_goes_on_takes_no_longer_one(
        self, ftrl: Builder, people: Users, monkeypatch: pytest.MonkeyPatch, now: float
    ) -> None:
        """The shorter of what it began with, and of what its users leave now."""
        strategy = DPFTRL(ftrl(**FAR))
        step = strategy.method.step

        def dying(state: State, release: ReleasedSum, scratch: Path) -> State:
            if release.round_number == 2:
                raise KeyboardInterrupt
            return step(state, release, scratch)

        strategy.method.step = dying  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            strategy.start(training_nodes(people))
        begun = strategy.method._longest_step
        assert 0.02 < begun < 0.5
        monkeypatch.setattr(NoiseAlone, "longest_step", lambda *_: now)
        resumed = DPFTRL(ftrl(**FAR, resume=True))
        resumed.start(training_nodes(people))
        assert of_rounds(resumed, "learning_rate") == [begun] * 1 + [min(begun, now)] * 5

    def test_a_clip_norm_that_grows_shortens_it(
        self, lstm: Path, tmp_path: Path, people: Users
    ) -> None:
        """Noise grows with the clip norm: what it adds to the model does not."""
        build = small_training(
            DPFedAvgConfig,
            tmp_path / "run",
            model=str(lstm),
            num_rounds=6,
            adaptive_clipping=True,
            clip_quantile=1.0,
            clip_learning_rate=1.0,
        )
        strategy = DPFedAvg(build(noise_multiplier=0.3, clip_norm=0.05, local_learning_rate=9.0))
        strategy.start(training_nodes(people))
        borne, clips = strategy.method._longest_step, of_rounds(strategy, "clip_norm")
        assert clips[-1] > borne * clips[0]
        expected = [min(1.0, borne * 0.05 / clip) for clip in clips]
        assert of_rounds(strategy, "learning_rate") == pytest.approx(expected)
        assert expected[0] == 1.0 > expected[-1]
