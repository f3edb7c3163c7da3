"""DP-FTRL: correlated noise through real messages, turns of users, restarts, published settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, LedgerError
from flower_privsyn.messages import wire
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy import CorrelatedNoise, PrivacyLedger
from flower_privsyn.run import RunDirectory, rounds
from flower_privsyn.run.method import need
from flower_privsyn.run.plan import plan_of
from flower_privsyn.strategies import DPFTRL, DPFedAvg, DPFTRLConfig, ReleasedSum
from flower_privsyn.strategies._training import FederatedTrainingConfig
from flower_privsyn.training.local import LocalModel
from tests.support.correlated import noise_matrix, prefix_std, worst_deviation
from tests.support.federation import asked, silent_users, training_nodes
from tests.support.probe import ROUNDS, Killed, Probe, dying_in, killed_at
from tests.support.questions import asked_round
from tests.support.run_files import lines, release
from tests.support.small_runs import small_training

Builder = Callable[..., Any]

WIDTH = 20_000
CORRELATIONS = ["blt", "banded", "tree"]


class TestNoise:
    @pytest.mark.parametrize("correlation", CORRELATIONS)
    def test_released_noise_has_the_law_of_the_matrix(
        self, federation: Builder, votes: Builder, correlation: str
    ) -> None:
        # 20,000 runs through real messages, without any signal.
        strategy = Probe(votes(correlation=correlation), candidates=WIDTH)
        strategy.start(federation(silent_users(12)))
        noise = np.stack([one.values for one in strategy.released]) / (1.5 * 3)
        factorisation = strategy.plan.phases[0].factorisation
        assert factorisation is not None
        matrix = noise_matrix(factorisation)
        assert worst_deviation(noise, matrix @ matrix.T) < 5.0
        assert worst_deviation(noise, np.eye(ROUNDS)) > 5.0
        for one, row in zip(strategy.released, matrix, strict=True):
            assert one.noise_std == pytest.approx(1.5 * 3 * np.linalg.norm(row))
        total = noise.sum(axis=0)
        expected = prefix_std(factorisation)[-1]
        assert total.std() == pytest.approx(expected, rel=4 / math.sqrt(2 * WIDTH))

    def test_a_run_in_pieces_has_the_law_of_a_whole_one(
        self,
        federation: Builder,
        votes: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Killed at every kind of moment; what was released is correlated as planned."""
        released: dict[int, np.ndarray] = {}

        def run(die: Callable[[Probe], None] | None, *, resume: bool = True) -> None:
            strategy = Probe(votes(resume=resume), candidates=WIDTH)
            if die is not None:
                die(strategy)
            try:
                strategy.start(federation(silent_users(12)))
            except Killed:
                assert die is not None
            released.update({one.round_number: one.values for one in strategy.released})

        def before_update(strategy: Probe) -> None:
            strategy.method.before_update = killed

        def before_storing(strategy: Probe) -> None:
            store = rounds.store_release

            def die(run: Any, one: ReleasedSum) -> None:
                if one.round_number == 2:
                    monkeypatch.setattr(rounds, "store_release", store)
                    raise Killed
                store(run, one)

            monkeypatch.setattr(rounds, "store_release", die)

        def killed() -> None:
            raise Killed

        run(before_update, resume=False)  # round 1 is stored, and used by the next process
        run(before_storing)  # round 2 is charged and lost
        run(before_update)  # round 3 is stored
        run(None)
        assert sorted(released) == [1, 3, 4, 5, 6, 7, 8]
        noise = np.stack([released[number] for number in sorted(released)]) / (1.5 * 3)
        [correlation] = PrivacyLedger.read(tmp_path / "run" / "ledger.jsonl").correlations
        matrix = noise_matrix(correlation.factorisation)[np.array(sorted(released)) - 1]
        assert worst_deviation(noise, matrix @ matrix.T) < 5.0

    def test_a_method_may_not_replace_the_stream(self) -> None:
        with pytest.raises(TypeError, match="must not override _open_noise"):
            type("Careless", (Probe,), {"_open_noise": lambda self: None})


class TestRestart:
    def test_killed_after_a_round_was_discarded(
        self,
        federation: Builder,
        votes: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The ledger has closed the round, the run directory has not: it is not asked again."""

        def lose(request: Message, reply: Message) -> list[Message]:
            lost = asked_round(request) == 3
            return [] if lost else [reply]

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "finish_round", killed_at(3))
            with pytest.raises(Killed):
                Probe(votes(min_users=1)).start(federation(tamper=lose))
        events = [line["event"] for line in lines(tmp_path / "run" / "ledger.jsonl")]
        assert events[-1] == "discarded"
        resumed = Probe(votes(min_users=1, resume=True))
        resumed.start(federation())
        assert [one.round_number for one in resumed.released] == [4, 5, 6, 7, 8]

    def test_a_lost_memory_stops_the_run(
        self, federation: Builder, votes: Builder, tmp_path: Path
    ) -> None:
        with pytest.raises(Killed):
            Probe(votes()).start(federation(tamper=dying_in(4)))
        memory = tmp_path / "run" / "noise.npz"
        assert memory.stat().st_mode & 0o777 == 0o600
        kept = memory.read_bytes()
        memory.unlink()
        with pytest.raises(LedgerError, match="does not reach round 3, which was released"):
            Probe(votes(resume=True)).start(federation())
        memory.write_bytes(kept)
        strategy = Probe(votes(resume=True))
        strategy.start(federation())
        assert [one.round_number for one in strategy.released] == [5, 6, 7, 8]

    def test_an_old_memory_stops_the_run(
        self, federation: Builder, votes: Builder, tmp_path: Path
    ) -> None:
        """As when the file comes from a backup: it would draw round 2's noise again."""
        memory = tmp_path / "run" / "noise.npz"
        with pytest.raises(Killed):
            Probe(votes()).start(federation(tamper=dying_in(2)))
        old = memory.read_bytes()
        with pytest.raises(Killed):
            Probe(votes(resume=True)).start(federation(tamper=dying_in(5)))
        memory.write_bytes(old)
        with pytest.raises(LedgerError, match="does not reach round 4"):
            Probe(votes(resume=True)).start(federation())

    def test_one_that_starts_again_takes_up_what_another_process_has_released(
        self, federation: Builder, votes: Builder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A ServerApp that catches an error and tries again has old noise in its memory."""
        settings = votes(resume="auto")
        strategy = Probe(settings)
        with pytest.raises(Killed):
            strategy.start(federation(tamper=dying_in(3)))
        with pytest.raises(Killed):
            Probe(settings).start(federation(tamper=dying_in(6)))
        drawn: list[int] = []
        innovation = CorrelatedNoise._innovation

        def counted(noise: CorrelatedNoise, size: int) -> Any:
            drawn.append(size)
            return innovation(noise, size)

        monkeypatch.setattr(CorrelatedNoise, "_innovation", counted)
        strategy.start(federation())
        assert [one.round_number for one in strategy.released] == [1, 2, 7, 8]
        # Of the lost round 6 and of these two. Those of rounds 4 and 5, drawn a second time, would
        # be taken back from what is out with other ones.
        assert len(drawn) == 3

    @pytest.mark.parametrize("last", ["released", "discarded", "interrupted"])
    def test_nothing_secret_is_left_at_the_end(
        self, federation: Builder, votes: Builder, tmp_path: Path, last: str
    ) -> None:
        """With the releases, the noise of the last rounds would give their sums away."""

        def lose(request: Message, reply: Message) -> list[Message]:
            number = asked_round(request)
            if number == ROUNDS and last == "interrupted":
                raise Killed
            return [] if number == ROUNDS and last == "discarded" else [reply]

        settings: dict[str, Any] = {"correlation": "banded", "min_users": 1}
        if last == "interrupted":
            with pytest.raises(Killed):
                Probe(votes(**settings)).start(federation(tamper=lose))
            assert (tmp_path / "run" / "noise.npz").exists()
            strategy = Probe(votes(**settings, resume=True))
            strategy.start(federation())
            assert strategy.released == []
        else:
            strategy = Probe(votes(**settings))
            strategy.start(federation(tamper=lose))
            assert len(strategy.released) == ROUNDS - (last == "discarded")
        assert strategy.run.status == "finished"
        assert secrets_in(tmp_path / "run") == []

    def test_what_a_kill_left_of_the_memory_goes_as_well(
        self, federation: Builder, votes: Builder, tmp_path: Path
    ) -> None:
        """Killed between writing the memory and giving it its name."""
        with pytest.raises(Killed):
            Probe(votes()).start(federation(tamper=dying_in(4)))
        run = tmp_path / "run"
        half = run / ".noise.npz.4711.42"  # as `files.replacing` calls it
        half.write_bytes((run / "noise.npz").read_bytes())
        Probe(votes(resume=True)).start(federation())
        assert secrets_in(run) == []


def secrets_in(run: Path) -> list[str]:
    """Files of a run that hold noise."""
    return [path.name for path in run.rglob("*") if "noise.npz" in path.name]


@pytest.fixture
def config(lstm: Path, tmp_path: Path) -> Callable[..., DPFTRLConfig]:
    """Settings of a small run that trains; keyword arguments replace them."""
    return small_training(
        DPFTRLConfig,
        tmp_path / "run",
        model=str(lstm),
        num_rounds=6,
        min_separation=2,
    )


@pytest.fixture
def people(texts: list[str]) -> Users:
    rows = [(f"user-{i}", texts[3 * i + k]) for i in range(8) for k in range(1 + i % 3)]
    return Users.from_rows(rows)


class TestTraining:
    def test_the_model_moves_by_the_running_total(self, config: Builder, people: Users) -> None:
        """Averages are over the expected size of a group, public, whatever its real size."""
        strategy = DPFTRL(config(server_momentum=0.0, noise_multiplier=0.2, clip_norm=2.0))
        strategy.start(training_nodes(people))
        total = sum(release(strategy.run.path, number) for number in range(1, 7))
        trained = LocalModel(TrainableModel(name=str(strategy.run.path / "models" / "final")))
        public = LocalModel(TrainableModel(name=strategy.config.model))
        assert trained.parameters == pytest.approx(public.parameters + total / 4, abs=1e-5)

    def test_everybody_in_every_round_is_dp_fedavg(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        """The same sums to the bit, the same epsilon, whatever the correlation is called."""
        ftrl = config(num_rounds=3, min_separation=1)
        same = {key: getattr(ftrl, key) for key in FederatedTrainingConfig.declared}
        same |= {"sampling": "full", "run_dir": str(tmp_path / "fedavg")}
        runs = [DPFTRL(ftrl), DPFedAvg(**same)]
        for run in runs:
            run.start(training_nodes(people))
        for number in (1, 2, 3):
            assert np.array_equal(*(release(run.run.path, number) for run in runs))
        plain = DPFedAvg(**{**same, "noise_multiplier": 2.0})
        spent = plan_of(plain.method, plain.config, population=8).epsilon()
        for correlation in CORRELATIONS:
            noisy = replace(ftrl, correlation=correlation, noise_multiplier=2.0)
            plan = plan_of(DPFTRL(noisy).method, noisy, population=8)
            assert (noise_matrix(need(plan.phases[0].factorisation)) == np.eye(3)).all()
            assert plan.epsilon() == pytest.approx(spent, rel=1e-9)

    @pytest.mark.parametrize("trainable", ["full", "lora"])
    def test_a_run_starts_from_what_another_made(
        self, config: Builder, people: Users, tmp_path: Path, gpt2: Path, trainable: str
    ) -> None:
        """Nodes load the public model; what differs is sent to them."""
        first = LocalModel(TrainableModel(name=str(gpt2)))
        generator = np.random.default_rng(0)
        moved = first.parameters + generator.normal(0, 0.1, first.dimension).astype(np.float32)
        first.save(tmp_path / "initial", moved)
        strategy = DPFTRL(
            config(
                model=str(gpt2),
                initial_model=str(tmp_path / "initial"),
                trainable=trainable,
                num_rounds=2,
                clip_norm=1e-6,
            )
        )
        grid = training_nodes(people)
        strategy.start(grid)
        for message in asked(grid):
            arrays = wire.read_broadcast(message.content["privsyn.broadcast"])
            assert set(arrays) == {"parameters"} | ({"base"} if trainable == "lora" else set())
        final = LocalModel(TrainableModel(name=str(strategy.run.path / "models" / "final")))
        assert final.parameters == pytest.approx(moved, abs=1e-4)

    def test_an_initial_model_of_another_kind_is_refused(
        self, config: Builder, people: Users, gpt2: Path
    ) -> None:
        grid = training_nodes(people)
        with pytest.raises(ConfigError, match="initial-model = .* is of another architecture"):
            DPFTRL(config(initial_model=str(gpt2))).start(grid)
        assert grid.requests == []
