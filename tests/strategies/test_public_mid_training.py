"""Public mid-training: what its rounds cost, and public text between them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from flower_privsyn.data import Users
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.run.plan import plan_of
from flower_privsyn.strategies import (
    DPFTRL,
    DPFTRLConfig,
    PublicMidTraining,
    PublicMidTrainingConfig,
)
from flower_privsyn.strategies import public_mid_training as public_step
from flower_privsyn.training import causal
from flower_privsyn.training.local import LocalModel
from flower_privsyn.training.selection import likelihoods
from tests.support.audit import DELTA
from tests.support.federation import asked, silent, training_nodes
from tests.support.parameters import named
from tests.support.questions import asked_round
from tests.support.run_files import lines, release
from tests.support.small_runs import small_mid_training

Builder = Callable[..., Any]


@pytest.fixture
def config(
    lstm: Path, gpt2: Path, public_file: Path, tmp_path: Path
) -> Callable[..., PublicMidTrainingConfig]:
    """Settings of a small run; keyword arguments replace them."""
    return small_mid_training(
        tmp_path / "run",
        lstm=lstm,
        gpt2=gpt2,
        public_file=public_file,
        num_rounds=6,
        min_separation=4,
        delta=DELTA,
    )


@pytest.fixture
def people(texts: list[str]) -> Users:
    rows = [(f"user-{i}", texts[2 * i + k]) for i in range(16) for k in range(1 + i % 2)]
    return Users.from_rows(rows)


def model_of(folder: Path) -> LocalModel:
    return LocalModel(TrainableModel(name=str(folder)))


def test_all_rounds_are_one_mechanism(config: Builder) -> None:
    settings = config(epsilon=2.0)
    plan = plan_of(PublicMidTraining(settings).method, settings, population=16)
    ((release, times),) = calibrated(plan, epsilon=2.0).released().items()
    assert (plan.rounds, times) == (6, 1)
    accountant = PLDAccountant().compose(GaussianDpEvent(release.noise_multiplier))
    assert accountant.get_epsilon(DELTA) == pytest.approx(2.0, rel=1e-3)


class TestWhoTakesPart:
    def test_a_turn_that_was_missed_is_not_made_up(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        """The group of round 3 did not answer; the next round still begins from public text."""
        grid = training_nodes(people, tamper=silent(3))
        PublicMidTraining(config(num_rounds=6)).start(grid)
        metrics = lines(tmp_path / "run" / "metrics.jsonl")
        assert [line["released"] for line in metrics] == [True, True, False, True, True, True]
        numbers = [asked_round(m) for m in asked(grid)]
        assert sorted(set(numbers)) == [1, 2, 3, 4, 5, 6]
        assert len(numbers) == 12
        step = json.loads((tmp_path / "run" / "public_step.json").read_text())
        assert step["steps"] == 3


class TestPublicText:
    def test_the_likeliest_rows_teach_the_model_of_the_first_half(
        self, config: Builder, people: Users, gpt2: Path, public_file: Path
    ) -> None:
        strategy = PublicMidTraining(config(epsilon=4.0))
        strategy.start(training_nodes(people))
        run = strategy.run.path
        before, after = (run / "models" / name for name in (public_step.BEFORE, public_step.AFTER))
        # What the first half released, to the bit.
        first_half = release(run, 3)
        assert len(first_half) == model_of(before).dimension
        step = json.loads((run / "public_step.json").read_text())
        public = PublicRows.of(
            str(public_file),
            tokenizer=load_tokenizer(str(gpt2))[0],
            max_tokens=32,
        )
        rows = [public[index] for index in range(len(public))]
        scores = sum(likelihoods(public, model, folder=run / "seen") for model in (before, gpt2))
        lengths = public.lengths
        best = np.argsort(-np.where(lengths < 5, -np.inf, scores), kind="stable")
        kept: list[int] = []
        for index in best:
            if any(np.array_equal(rows[index], rows[other]) for other in kept):
                continue
            if lengths[[*kept, index]].sum() > lengths.sum() // 2:
                break
            kept.append(int(index))
        assert step["chosen_rows"] == len(kept)
        again = causal.fine_tune(
            before,
            [public.text_of(index) for index in kept],
            settings=strategy.config.student_training(),
            output=run / "again",
            seed=0,
            distillation=strategy.config.distillation(),
        )
        assert again.losses[-1] == pytest.approx(step["loss"])
        assert np.array_equal(model_of(run / "again").parameters, model_of(after).parameters)

    def test_the_second_half_goes_on_from_there(self, config: Builder, people: Users) -> None:
        """Also its momentum begins anew."""
        strategy = PublicMidTraining(config(noise_multiplier=0.2, num_rounds=2, min_separation=1))
        strategy.start(training_nodes(people))
        run = strategy.run.path
        after = model_of(run / "models" / public_step.AFTER).parameters
        query = strategy.config.question(strategy.config.clip_norm)
        moved = query.mean_update(release(run, 2), 16)
        final = model_of(run / "models" / "final").parameters
        assert final == pytest.approx(after + moved, abs=1e-6)

    @pytest.mark.parametrize("position", ["before", "after"])
    def test_stands_elsewhere(
        self, config: Builder, people: Users, position: str, lstm: Path
    ) -> None:
        strategy = PublicMidTraining(
            config(position=position, public_rows="random", num_rounds=2, teacher="")
        )
        strategy.start(training_nodes(people))
        run = strategy.run.path
        final = model_of(run / "models" / "final").parameters
        assert len(strategy.plan.phases) == 1
        before, after = (
            model_of(run / "models" / name).parameters
            for name in (public_step.BEFORE, public_step.AFTER)
        )
        assert np.array_equal(before, model_of(lstm).parameters) == (position == "before")
        assert np.array_equal(after, final) == (position == "after")
        assert not np.array_equal(before, after)

    def test_adapters_are_trained_on_the_base_that_public_text_made(
        self, config: Builder, people: Users, llama: Path, gpt2: Path
    ) -> None:
        settings = config(
            model=str(gpt2), teacher=str(llama), trainable="lora", lora_rank=2, num_rounds=4
        )
        strategy = PublicMidTraining(settings)
        grid = training_nodes(people)
        strategy.start(grid)
        run = strategy.run.path
        after = run / "models" / public_step.AFTER
        base = LocalModel(replace(settings.trained_model(), name=str(after))).base
        for message in asked(grid):
            number = asked_round(message)
            arrays = wire.read_broadcast(message.content["privsyn.broadcast"])
            assert ("base" in arrays) == (number > 2)
            if number > 2:
                assert np.array_equal(arrays["base"], base)
        # Nothing but adapters moved since.
        plain, final = model_of(after), model_of(run / "models" / "final")
        begun, moved = named(plain, plain.parameters), named(final, final.parameters)
        same = {name for name in begun if np.array_equal(begun[name], moved[name])}
        assert any("wte" in name for name in same)
        assert 0 < len(same) < len(begun)


class TestSettings:
    def test_none_is_dp_ftrl(self, config: Builder, people: Users, tmp_path: Path) -> None:
        """The same sums to the bit."""
        strategy = PublicMidTraining(config(position="none", num_rounds=3))
        strategy.start(training_nodes(people))
        values = {
            name: getattr(strategy.config, name)
            for name in DPFTRLConfig.declared
            if name != "run_dir"
        }
        plain = DPFTRL(DPFTRLConfig(**values, run_dir=str(tmp_path / "plain")))
        plain.start(training_nodes(people))
        for number in (1, 2, 3):
            assert np.array_equal(
                release(strategy.run.path, number), release(plain.run.path, number)
            )

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"select_share": 0.01}, r"may leave \d rows, fewer than training-batch-size = 4"),
            ({"least_row_tokens": 33}, "has no row of least-row-tokens = 33 tokens"),
            ({"public_model": "privsyn-lm"}, "public-model must have the tokens of"),
            ({"teacher": "privsyn-lm"}, "teacher must have the tokens of"),
        ],
    )
    def test_what_could_not_work_later_is_refused_before_anybody_is_asked(
        self,
        config: Builder,
        people: Users,
        tmp_path: Path,
        changes: dict[str, Any],
        sentence: str,
    ) -> None:
        grid = training_nodes(people)
        with pytest.raises(ConfigError, match=sentence):
            PublicMidTraining(config(**changes)).start(grid)
        assert grid.requests == []
        assert not (tmp_path / "run" / "ledger.jsonl").exists()
