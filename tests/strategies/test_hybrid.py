"""The hybrid: what both phases cost together, the student between them, and kills in each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from flower_privsyn.client_apps.guard import NodeGuard
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.data import Users
from flower_privsyn.messages import wire
from flower_privsyn.models.bias import LogitBias
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import PrivacyLedger
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.run.plan import announcement, plan_of
from flower_privsyn.strategies import DPFTRL, DPFTRLConfig, Hybrid, HybridConfig
from flower_privsyn.strategies.hybrid import SketchThenTraining
from flower_privsyn.training.local import LocalModel
from tests.support.correlated import strategy_matrix, turns
from tests.support.federation import asked, silent, training_nodes
from tests.support.parameters import named
from tests.support.probe import Killed, dying_in
from tests.support.run_files import lines, release, releases
from tests.support.small_runs import small_training

Builder = Callable[..., Any]

DELTA = 1e-5


@pytest.fixture
def config(
    lstm: Path, gpt2: Path, public_file: Path, tmp_path: Path
) -> Callable[..., HybridConfig]:
    """Settings of a small run; keyword arguments replace them."""
    return small_training(
        HybridConfig,
        tmp_path / "run",
        noises=("noise_multiplier", "first_noise_multiplier"),
        model=str(lstm),
        teacher=str(gpt2),
        public_text=str(public_file),
        num_bigrams=40,
        select_share=0.5,
        least_selected=1,
        least_row_tokens=5,
        most_overlap=1.0,
        student_steps=3,
        training_batch_size=4,
        num_rounds=5,
        min_separation=2,
        delta=DELTA,
    )


@pytest.fixture
def people(texts: list[str]) -> Users:
    rows = [(f"user-{i}", texts[2 * i + k]) for i in range(16) for k in range(1 + i % 2)]
    return Users.from_rows(rows)


def model_of(folder: Path) -> LocalModel:
    return LocalModel(TrainableModel(name=str(folder)))


def by_dp_accounting(*multipliers: float) -> float:
    accountant = PLDAccountant()
    for multiplier in multipliers:
        accountant.compose(GaussianDpEvent(multiplier))
    return float(accountant.get_epsilon(DELTA))


def charged(run: Path) -> list[tuple[int, str]]:
    return [(line["round"], line["query"]) for line in releases(run)]


class TestTheBudget:
    def test_ledger_of_both_phases_costs_what_dp_accounting_says(
        self, config: Builder, people: Users
    ) -> None:
        """From the lines alone, with the dense matrix of the correlation."""
        share = 0.05
        strategy = Hybrid(config(epsilon=2.0, first_share=share))
        strategy.start(training_nodes(people))
        run = strategy.run.path
        assert charged(run) == [(1, "joint_sketch"), *((n, "model_delta") for n in (2, 3, 4, 5))]
        ledger = PrivacyLedger.read(run / "ledger.jsonl")
        ((correlation, fresh),) = ledger.correlations.items()
        matrix = strategy_matrix(correlation.factorisation)
        norms = [
            float(np.linalg.norm(matrix[:, list(turn)].sum(axis=1)))
            for turn in turns(matrix.shape[1], correlation.min_separation)
        ]
        sketch, together = releases(run)[0]["noise_multiplier"], fresh / max(norms)
        assert correlation.first_round == 2
        assert by_dp_accounting(sketch, together) == pytest.approx(2.0, rel=1e-3)
        assert ledger.spent["epsilon_release"] == pytest.approx(2.0, rel=1e-3)
        assert ledger.spent["epsilon_known_cohorts"] == ledger.spent["epsilon_release"]
        assert ledger.spent["epsilon_release"] <= 2.0
        # The sketch has its share of 1 / z^2, and no more.
        parts = np.array([sketch, together]) ** -2.0
        assert parts[0] / parts.sum() == pytest.approx(share, rel=2e-3)
        # Everybody is asked for the sketch, and a group of them in every round that trains.
        asked_of = [line["num_users"] for line in lines(run / "metrics.jsonl")]
        assert asked_of[0] == 16
        assert asked_of[1] + asked_of[2] == asked_of[3] + asked_of[4] == 16

    def test_nodes_are_told_of_the_noise_of_rounds_that_are_paid_for(self, config: Builder) -> None:
        """Owners want noise in the rounds that train, although nothing is left to pay."""
        settings = config(epsilon=1.0)
        method = SketchThenTraining(settings)
        settled = calibrated(plan_of(method, settings, population=16), epsilon=1.0)
        training = settled.released_by(settled.phases[-1])
        told = [announcement(method, settings, settled, behind=behind) for behind in (0, 1, 2, 4)]
        assert [sum(asked.count for asked in one.to_come) for one in told] == [2, 1, 0, 0]
        owner = NodePolicy(max_epsilon=1.0, delta=settled.delta)
        for one in told:
            NodeGuard(owner, {"dataset": "people"}).check_plan(one, 7)
        (multiplier,) = {release.noise_multiplier for release in training}
        assert {one.noise_multiplier for one in told[1:]} == {multiplier}


class TestTheStudent:
    def test_rounds_go_on_from_what_the_release_made(self, config: Builder, people: Users) -> None:
        strategy = Hybrid(config(num_rounds=2, min_separation=1))
        strategy.start(training_nodes(people))
        run = strategy.run.path
        start, student, plain = (
            model_of(Path(name)).parameters
            for name in (
                strategy.config.model,
                run / "models" / "student",
                run / "models" / "plain",
            )
        )
        assert not np.array_equal(start, student)
        query = strategy.config.question(strategy.config.clip_norm)
        moved = query.mean_update(release(run, 2), 16)
        assert np.abs(moved).max() > 1e-6
        assert plain == pytest.approx(student + moved, abs=1e-6)
        # What is left of the release is in the logits of the final model, and nowhere else.
        final, _ = load_pretrained(
            run / "models" / "final", kind="causal", dtype="float32", device="cpu"
        )
        inside = {name: value.numpy() for name, value in final.base.state_dict().items()}
        trained = model_of(run / "models" / "plain")
        for name, value in named(trained, plain).items():
            assert np.array_equal(inside[name], value), name
        assert float(final.token_bias.abs().max()) > 0
        assert strategy.run.state["summary"]["model"] == "models/final"

    def test_nodes_train_with_what_the_student_lacks(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        """The same bias in every round and in the result, and updates that are made under it."""
        strategy, grid = Hybrid(config(num_rounds=3, min_separation=1)), training_nodes(people)
        strategy.start(grid)
        run = strategy.run.path
        final, _ = load_pretrained(
            run / "models" / "final", kind="causal", dtype="float32", device="cpu"
        )
        sent = [
            LogitBias.of_arrays(wire.read_broadcast(message.content["privsyn.broadcast"]))
            for message in asked(grid)
        ]
        assert sent[0] is None
        assert len(sent) == 6  # of three rounds, two nodes each, the first of them the sketch's
        for bias in sent[2:]:
            assert bias is not None
            assert bias.bigrams is not None
            assert np.array_equal(bias.tokens, final.token_bias.numpy())
            assert np.array_equal(bias.bigrams.data, final.bigram_values.numpy())
            assert np.abs(bias.tokens).max() > 0.01
        # What the rounds taught is not what they teach without it.
        settings = config(
            num_rounds=3,
            min_separation=1,
            token_bias=0.0,
            run_dir=str(tmp_path / "without"),
        )
        Hybrid(settings).start(training_nodes(people))
        assert np.array_equal(release(run, 1), release(tmp_path / "without", 1))
        assert np.abs(release(run, 2) - release(tmp_path / "without", 2)).max() > 1e-3

    def test_without_a_sketch_the_rounds_are_dp_ftrl_s(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        """Killed while it was asked, and lost: the rounds train the model as it was."""
        with pytest.raises(Killed):
            Hybrid(config(min_users=1)).start(training_nodes(people, tamper=dying_in(1)))
        hybrid = Hybrid(config(min_users=1, resume=True))
        hybrid.start(training_nodes(people))
        run = hybrid.run.path
        assert charged(run)[1:] == [(number, "model_delta") for number in (2, 3, 4, 5)]
        assert not (run / "models" / "student").exists()
        # Their turns are counted from the first round of the run, so the first one is everybody's.
        values = {name: getattr(hybrid.config, name) for name in DPFTRLConfig.declared}
        values |= {"run_dir": str(tmp_path / "plain"), "resume": False}
        DPFTRL(DPFTRLConfig(**values)).start(training_nodes(people, tamper=silent(1)))
        ours, theirs = (
            model_of(path / "models" / "final").parameters for path in (run, tmp_path / "plain")
        )
        assert np.array_equal(ours, theirs)
