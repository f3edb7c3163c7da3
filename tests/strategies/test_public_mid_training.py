"""Public mid-training: who is in which half, what both cost, and public text between them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from flower_privsyn.data import Users
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError
from flower_privsyn.host.progress import Progress
from flower_privsyn.messages import wire
from flower_privsyn.node import NodeGuard, NodePolicy
from flower_privsyn.privacy import (
    CorrelatedNoise,
    Correlation,
    GaussianMechanism,
    InsecureRandom,
    Phase,
    Plan,
    PrivacyLedger,
    Release,
    Sampling,
    participation_of,
    release_epsilon,
)
from flower_privsyn.private_path.settling import announcement, plan_of, settle
from flower_privsyn.queries import TrainableModel
from flower_privsyn.strategies import (
    DPFTRL,
    DPFTRLConfig,
    PublicMidTraining,
    PublicMidTrainingConfig,
)
from flower_privsyn.strategies.parts import public_step
from flower_privsyn.strategies.public_mid_training import TrainingInHalves
from flower_privsyn.training import causal, distribution_matching
from flower_privsyn.training.distribution_matching import LanguageModelScorer
from flower_privsyn.training.local import LocalModel
from flower_privsyn.training.selection import Rows
from tests.support.audit import DELTA, TRIALS, best_threshold, epsilon_lower_bound
from tests.support.correlated import worst_deviation
from tests.support.federation import asked, silent, silent_users, training_nodes
from tests.support.probe import CorrelatedProbeMethod, Killed, Probe
from tests.support.run_files import lines, release
from tests.support.small_runs import small_mid_training
from tests.support.traffic import check_planned

Builder = Callable[..., Any]

WIDTH = 20_000


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


def samplings(run: Path) -> list[Sampling]:
    """Who is asked in each round, as the ledger says."""
    started = [line for line in lines(run / "ledger.jsonl") if line["event"] == "started"]
    return [Sampling.from_dict(line["sampling"]).of_round(line["round"]) for line in started]


def turns(run: Path, users: Users) -> np.ndarray:
    """(rounds, users) whether each of them takes part."""
    return np.stack([one.participants(users.user_ids, key=b"") for one in samplings(run)])


def streams(run: Path) -> list[tuple[Correlation, float]]:
    """Each mechanism of a ledger, and the noise multiplier of its rounds together."""
    found = PrivacyLedger.read(run / "ledger.jsonl").correlations
    return [(one, one.noise_multiplier(multiplier)) for one, multiplier in found.items()]


def killed_in(number: int) -> Callable[..., None]:
    """In the place of what writes a round: dies in one of them."""
    write = TrainingInHalves._write

    def or_die(self: TrainingInHalves, state: Any, of: int) -> None:
        if of == number:
            raise Killed
        write(self, state, of)

    return or_die


def by_dp_accounting(*multipliers: float) -> float:
    accountant = PLDAccountant()
    for multiplier in multipliers:
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), 1))
    return float(accountant.get_epsilon(DELTA))


class TestCost:
    def test_disjoint_halves_cost_the_larger_one(self, config: Builder, people: Users) -> None:
        strategy = PublicMidTraining(config(noise_multiplier=3.0, num_rounds=7, first_rounds=3))
        strategy.start(training_nodes(people))
        run = strategy.run.path
        (first, alone), (second, other) = streams(run)
        assert (first.first_round, second.first_round) == (1, 4)
        for correlation, multiplier in ((first, alone), (second, other)):
            # The dense matrix, every turn of every group tried.
            matrix = correlation.factorisation.strategy_matrix()
            norms = [
                float(np.linalg.norm(matrix[:, list(turn)].sum(axis=1)))
                for turn in correlation.participation.patterns()
            ]
            assert multiplier == pytest.approx(3.0 / max(norms), rel=1e-9)
        ledger = PrivacyLedger.read(run / "ledger.jsonl")
        assert ledger.epsilon_release == pytest.approx(
            by_dp_accounting(min(alone, other)), rel=1e-3
        )
        assert ledger.epsilon_known_cohorts == ledger.epsilon_release

    def test_halves_of_the_same_users_compose(self, config: Builder, people: Users) -> None:
        strategy = PublicMidTraining(config(epsilon=2.0, cohorts="everybody"))
        strategy.start(training_nodes(people))
        (_, first), (_, second) = streams(strategy.run.path)
        ledger = PrivacyLedger.read(strategy.run.ledger_file)
        assert ledger.epsilon_release == pytest.approx(2.0, rel=1e-3)
        assert by_dp_accounting(first, second) == pytest.approx(2.0, rel=1e-3)

    def test_the_larger_one_is_within_the_budget_of_a_run_that_was_resumed(
        self, config: Builder, people: Users, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed where the noise of the second half lies in `noise.npz`, and before it does."""
        for number, resume in ((3, False), (5, True)):
            with monkeypatch.context() as patch:
                patch.setattr(TrainingInHalves, "_write", killed_in(number))
                with pytest.raises(Killed):
                    PublicMidTraining(config(epsilon=2.0, resume=resume)).start(
                        training_nodes(people)
                    )
        strategy = PublicMidTraining(config(epsilon=2.0, resume=True))
        strategy.start(training_nodes(people))
        (_, first), (_, second) = streams(strategy.run.path)
        assert by_dp_accounting(min(first, second)) == pytest.approx(2.0, rel=1e-3)
        ledger = PrivacyLedger.read(strategy.run.ledger_file)
        assert ledger.epsilon_release == pytest.approx(2.0, rel=1e-3)
        asked_in = turns(strategy.run.path, people)
        assert len(asked_in) == 6
        assert not (asked_in[:3].sum(0) * asked_in[3:].sum(0)).any()

    def test_a_stream_that_goes_on_is_one_mechanism(self, config: Builder, people: Users) -> None:
        strategy = PublicMidTraining(
            config(epsilon=2.0, noise_stream="continue", cohorts="everybody")
        )
        strategy.start(training_nodes(people))
        ((correlation, multiplier),) = streams(strategy.run.path)
        assert correlation.factorisation.rounds == 6
        assert by_dp_accounting(multiplier) == pytest.approx(2.0, rel=1e-3)

    @pytest.mark.parametrize(
        ("epsilon", "exact", "restarted"), [("1.77", 1.6487, 1.6834), ("18.71", 17.6668, 17.6255)]
    )
    def test_what_the_paper_prints(
        self, epsilon: Any, exact: float, restarted: float, tmp_path: Path
    ) -> None:
        """One tree over all rounds, by Rényi; the exact cost; halves with a tree each."""

        def cost(**changes: Any) -> float:
            settings = PublicMidTrainingConfig.wang(
                epsilon=epsilon, **{"run_dir": str(tmp_path), **changes}
            )
            population, releases = 342_000, []
            for phase in TrainingInHalves(settings).phases(population):
                multiplier = (phase.noise_multiplier or 0.0) / phase.sensitivity
                releases.append(Release(noise_multiplier=multiplier, sampling=phase.sampling))
            return release_epsilon(releases, delta=settings.delta, accountant=settings.accountant)

        assert cost() == pytest.approx(float(epsilon), abs=5e-3)
        assert cost(accountant="pld") == pytest.approx(exact, rel=2e-3)
        assert cost(noise_stream="restart") == pytest.approx(restarted, abs=5e-4)
        # T' and T - T' of 400 and 1,200: a tree of 11 levels in the longer part.
        assert cost(noise_stream="restart", first_rounds=400) == pytest.approx(cost(), rel=1e-9)
        composed = cost(noise_stream="restart", cohorts="everybody")
        assert composed == pytest.approx({"1.77": 2.4534, "18.71": 27.4284}[epsilon], abs=5e-4)
        exactly = {"1.77": (1.5654, 2.2862), "18.71": (16.6361, 25.9892)}[epsilon]
        for cohorts, value in zip(("disjoint", "everybody"), exactly, strict=True):
            found = cost(noise_stream="restart", cohorts=cohorts, accountant="pld")
            assert found == pytest.approx(value, rel=2e-3)


class TestWhoTakesPart:
    def test_nobody_in_both_halves(self, config: Builder, people: Users) -> None:
        strategy = PublicMidTraining(config(num_rounds=8))
        strategy.start(training_nodes(people))
        asked_in = turns(strategy.run.path, people)
        first, second = asked_in[:4].sum(0), asked_in[4:].sum(0)
        assert not (first * second).any()
        assert set((first + second).tolist()) == {2}  # two groups a half, four rounds
        # A round's cohort is as large as without halves: a group of all.
        assert asked_in.sum(1).tolist() == [
            line["num_users"] for line in lines(strategy.run.path / "metrics.jsonl")
        ]

    def test_everybody_again(self, config: Builder, people: Users) -> None:
        strategy = PublicMidTraining(config(num_rounds=8, cohorts="everybody"))
        strategy.start(training_nodes(people))
        asked_in = turns(strategy.run.path, people)
        assert (asked_in[:4].sum(0) == 1).all()
        assert (asked_in[:4] == asked_in[4:]).all()

    def test_a_turn_that_was_missed_is_not_made_up(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        """The group of round 3 did not answer; the second half still begins from public text."""
        grid = training_nodes(people, tamper=silent(3))
        PublicMidTraining(config(num_rounds=6)).start(grid)
        metrics = lines(tmp_path / "run" / "metrics.jsonl")
        assert [line["released"] for line in metrics] == [True, True, False, True, True, True]
        numbers = [m.content["privsyn.request"]["round"] for m in asked(grid)]
        assert sorted(set(numbers)) == [1, 2, 3, 4, 5, 6]
        assert len(numbers) == 12
        step = json.loads((tmp_path / "run" / "public_step.json").read_text())
        assert step["steps"] == 3


class TestNodesAreTold:
    def test_what_is_left_to_come(self, config: Builder) -> None:
        """Also in the second half, which is paid for and whose owners want noise."""
        settings = config(epsilon=1.0)
        method = TrainingInHalves(settings)
        settled = settle(plan_of(method, settings, population=16), epsilon=1.0, run=None)
        (release_of_half, _) = settled.plan.released()
        told = [announcement(method, settings, settled, behind=behind) for behind in (0, 2, 3, 4)]
        assert [sum(asked.count for asked in one.to_come) for one in told] == [2, 1, 1, 0]
        # Both halves, of other users each, cost what one of them does.
        owner = NodePolicy(max_epsilon=1.0, delta=settled.plan.delta)
        for one in told:
            NodeGuard(owner, {"dataset": "people"}).check_plan(one, 7)
        assert {one.noise_multiplier for one in told} == {release_of_half.noise_multiplier}


class VotesInHalves(CorrelatedProbeMethod):
    """Asks for votes under the noise of both halves."""

    def phases(self, population: int) -> tuple[Phase, ...]:
        assert isinstance(self.config, PublicMidTrainingConfig)
        halves = TrainingInHalves(self.config).phases(population)
        return tuple(replace(phase, asks=self.queries) for phase in halves)


class TestNoise:
    def test_has_the_law_of_two_matrices_that_know_nothing_of_each_other(
        self, config: Builder, federation: Builder
    ) -> None:
        settings = config(
            noise_multiplier=1.5, num_rounds=7, first_rounds=3, max_samples=3, server_momentum=0.0
        )
        strategy = Probe(settings, candidates=WIDTH, method=VotesInHalves)
        strategy.start(federation(silent_users(12)))
        noise = np.stack([one.values for one in strategy.released]) / (1.5 * 3)
        covariance = np.zeros((7, 7))
        for phase, first in zip(strategy.plan.phases, (0, 3), strict=True):
            assert phase.factorisation is not None
            matrix = phase.factorisation.noise_matrix()
            last = first + phase.rounds
            covariance[first:last, first:last] = matrix @ matrix.T
        assert worst_deviation(noise, covariance) < 5.0
        assert worst_deviation(noise, np.eye(7)) > 5.0

    @pytest.mark.parametrize("cohorts", ["disjoint", "everybody"])
    def test_an_attacker_proves_most_of_what_is_claimed_and_no_more(
        self, config: Builder, cohorts: str
    ) -> None:
        """A user of the worst group; where halves are disjoint, of one half alone."""
        settings = config(
            epsilon=1.0, cohorts=cohorts, num_rounds=6, min_separation=4, correlation="banded"
        )
        phases = TrainingInHalves(settings).phases(40)
        plan = Plan(phases=phases, delta=DELTA).calibrated(1.0)
        assert 0.999 < plan.epsilon() <= 1.0
        random = InsecureRandom(3)
        mean, present, absent = 0.0, np.zeros(TRIALS), np.zeros(TRIALS)
        for phase in plan.phases[: 1 if cohorts == "disjoint" else 2]:
            part = attacked(plan, phase, random)
            mean, present, absent = mean + part[0], present + part[1], absent + part[2]
        # The best test's statistic has this mean, and is its own variance.
        bound = epsilon_lower_bound(present, absent, best_threshold(mean, math.sqrt(mean)))
        assert 0.6 <= bound <= 1.0


def attacked(
    plan: Plan, phase: Phase, random: InsecureRandom
) -> tuple[float, np.ndarray, np.ndarray]:
    """The best test's statistic for a phase, in many runs with the user and without."""
    assert phase.factorisation is not None
    pattern = participation_of(phase.sampling, rounds=phase.rounds)
    correlation = Correlation.create(
        phase.factorisation, pattern, first_round=plan.first_round(phase)
    )
    mechanism = GaussianMechanism(
        noise_multiplier=phase.noise_multiplier or 0.0, l2_sensitivity=1.0
    )
    turn = max(pattern.patterns(), key=len)
    user = np.isin(np.arange(phase.rounds), turn).astype(float)
    matrix = mechanism.standard_deviation * phase.factorisation.noise_matrix()
    weights = np.linalg.solve(matrix @ matrix.T, user)
    statistics = []
    for there in (1.0, 0.0):
        noise = CorrelatedNoise(correlation, random=random)
        statistic = np.zeros(TRIALS)
        for number in range(phase.rounds):
            noise.prepare(correlation.first_round + number, TRIALS)
            others = np.full(TRIALS, 5.0)
            released = mechanism.release(others + there * user[number], random=noise)
            statistic += weights[number] * (released - others)
        statistics.append(statistic)
    return float(user @ weights), statistics[0], statistics[1]


class TestPublicText:
    def test_the_likeliest_rows_teach_the_model_of_the_first_half(
        self, config: Builder, people: Users, gpt2: Path, public_file: Path
    ) -> None:
        strategy = PublicMidTraining(config(epsilon=4.0))
        strategy.start(training_nodes(people))
        check_planned(strategy, size=strategy.method.model.dimension)
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
            setting="public-text",
        )
        rows = [public.row(index) for index in range(len(public))]
        scores = sum(
            LanguageModelScorer(model=model)(Rows(tokens=rows)) for model in (before, gpt2)
        )
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

    def test_the_public_model_reads_a_corpus_once(
        self, config: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run finds its scores; damaged ones are made again."""
        monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
        chosen, read = [], []
        for number in range(3):
            run = tmp_path / f"run-{number}"
            settings = config(teacher="")
            step = public_step.PublicStep(settings, run=run, progress=Progress(tmp_path / "shown"))
            step.check()
            step.take(LocalModel(settings.trained_model()).parameters)
            chosen.append(json.loads((run / "public_step.json").read_text()))
            read.append((run / "public_scores" / "public").exists())
            if number == 1:
                (kept,) = tmp_path.glob("cache/public-rows/*/scores-*.npy")
                kept.write_bytes(kept.read_bytes()[:-8])
        assert read == [True, False, True]
        assert chosen[0] == chosen[1] == chosen[2]

    def test_what_the_rounds_made_likelier_teaches_the_model(
        self, config: Builder, gpt2: Path, public_file: Path, tmp_path: Path
    ) -> None:
        """Against the model that the rounds began from, which need not be `model`."""
        other = str(shutil.copytree(gpt2, tmp_path / "other"))
        settings = config(
            model=str(gpt2), initial_model=other, public_rows="contrasted", teacher=""
        )
        step = public_step.PublicStep(
            settings, run=tmp_path / "run", progress=Progress(tmp_path / "shown")
        )
        step.check()
        moved = LocalModel(settings.trained_model()).parameters.copy()
        moved[:64] += 0.5
        taught = step.take(moved)
        before = tmp_path / "run" / "models" / public_step.BEFORE
        public = PublicRows.of(
            str(public_file),
            tokenizer=load_tokenizer(str(gpt2))[0],
            max_tokens=32,
            setting="public-text",
        )
        rows = Rows(tokens=[public.row(index) for index in range(len(public))])
        gain = LanguageModelScorer(model=before)(rows) - LanguageModelScorer(model=other)(rows)
        gain = np.where(public.lengths < 5, -np.inf, gain)
        expected = distribution_matching.keep_share(
            public, gain, distribution_matching.TokenShare(share=0.5, least_rows=4)
        )
        again = causal.fine_tune(
            before,
            [public.text_of(int(index)) for index in expected.indices],
            settings=settings.student_training(),
            output=tmp_path / "again",
            seed=0,
        )
        assert again.steps == 3
        assert np.array_equal(model_of(tmp_path / "again").parameters, model_of(taught).parameters)

    def test_the_second_half_goes_on_from_there(self, config: Builder, people: Users) -> None:
        """Also its momentum begins anew."""
        strategy = PublicMidTraining(
            config(noise_multiplier=0.2, cohorts="everybody", num_rounds=2, min_separation=1)
        )
        strategy.start(training_nodes(people))
        run = strategy.run.path
        after = model_of(run / "models" / public_step.AFTER).parameters
        query = strategy.config.question(strategy.config.clip_norm)
        moved = query.mean_update(release(run, 2), 16)
        final = model_of(run / "models" / "final").parameters
        assert final == pytest.approx(after + moved, abs=1e-6)

    @pytest.mark.parametrize("position", ["before", "after", "none"])
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
        if position == "none":
            assert not (run / "public_step.json").exists()
            assert not (run / "models" / public_step.AFTER).exists()
            return
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
        whole = model_of(gpt2).dimension
        check_planned(strategy, size=strategy.method.model.dimension, whole=whole)
        run = strategy.run.path
        after = run / "models" / public_step.AFTER
        base = LocalModel(replace(settings.trained_model(), name=str(after))).base
        for message in asked(grid):
            number = message.content["privsyn.request"]["round"]
            arrays = wire.read_broadcast(message.content["privsyn.broadcast"])
            assert ("base" in arrays) == (number > 2)
            if number > 2:
                assert np.array_equal(arrays["base"], base)
        # Nothing but adapters moved since.
        plain, final = model_of(after), model_of(run / "models" / "final")
        named, moved = plain.named(plain.parameters), final.named(final.parameters)
        same = {name for name in named if np.array_equal(named[name], moved[name])}
        assert any("wte" in name for name in same)
        assert 0 < len(same) < len(named)


class TestKilled:
    @pytest.mark.parametrize("trainable", ["full", "lora"])
    def test_in_every_phase(
        self,
        config: Builder,
        people: Users,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        trainable: str,
        gpt2: Path,
        llama: Path,
    ) -> None:
        """In both halves, while rows are scored and while they are learnt."""
        kept: dict[str, Any] = {"model": str(gpt2), "teacher": str(llama), "trainable": trainable}
        kept |= {"num_rounds": 4, "epsilon": None, "noise_multiplier": 0.0}

        def run(folder: str, *, resume: bool = False) -> Path:
            settings = config(**kept, run_dir=str(tmp_path / folder), resume=resume)
            PublicMidTraining(settings).start(training_nodes(people))
            return tmp_path / folder

        whole = run("whole")
        killed_at = 0
        for target, name, times in (
            (TrainingInHalves, "_read", 1),  # in the first half
            (distribution_matching, "note_rows_done", 1),
            (causal, "_take_steps", 1),
            (TrainingInHalves, "_forget_until", 2),  # in the second half
            (LocalModel, "save", 1),  # of the result
        ):
            original, left = getattr(target, name), [times]

            def die(*args: Any, _of: Any = original, _left: list[int] = left, **kw: Any) -> Any:
                _left[0] -= 1
                if _left[0] == 0:
                    raise Killed
                return _of(*args, **kw)

            with monkeypatch.context() as patch:
                patch.setattr(target, name, die)
                try:
                    run("pieces", resume=killed_at > 0)
                except Killed:
                    killed_at += 1
        assert killed_at == 5
        pieces = run("pieces", resume=True)
        for name in (public_step.BEFORE, public_step.AFTER, "final"):
            expected = model_of(whole / "models" / name).parameters
            assert np.array_equal(model_of(pieces / "models" / name).parameters, expected), name
        charged = [
            [line["round"] for line in lines(path / "ledger.jsonl") if line["event"] == "release"]
            for path in (whole, pieces)
        ]
        assert charged[0] == charged[1] == [1, 2, 3, 4]


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
            ({"first_rounds": 6}, r"first-rounds = 6 must be from 1 to num-rounds - 1 = 5"),
            ({"first_rounds": 7}, r"first-rounds = 7 must be from 1"),
            ({"num_rounds": 1}, r"first-rounds = 0 must be from 1 to num-rounds - 1 = 0"),
            ({"first_rounds": 2, "position": "after"}, 'needs position = "middle"'),
            ({"position": "before"}, 'public-rows = "matched" needs rounds before'),
            (
                {"position": "before", "public_rows": "contrasted"},
                'public-rows = "contrasted" needs rounds before',
            ),
            ({"min_separation": 1}, "min-separation must be at least 2, got 1"),
            ({"relation": "replace-one"}, "who takes a user's place may be of the other half"),
            (
                {"noise_stream": "continue"},
                "min-separation = 4 must be at least num-rounds = 6",
            ),
            (
                {"num_rounds": 10, "min_separation": 5, "max_participations": 2, "first_rounds": 5},
                "max-participations = 2 is less than the 3 turns of a user in a half of 5 rounds",
            ),
            (
                {"correlation": "banded", "noise_bands": 3},
                "noise-bands = 3 must be at most the 2 groups of the smaller half",
            ),
            ({"select_share": 0.0}, "select-share"),
            ({"teacher_alone": True, "teacher": ""}, "teacher-alone = true needs a teacher"),
        ],
    )
    def test_bad_values_are_named(
        self, config: Builder, changes: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(ConfigError, match=sentence):
            config(**changes)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"select_share": 0.01}, r"may leave \d rows, fewer than student-batch-size = 4"),
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
