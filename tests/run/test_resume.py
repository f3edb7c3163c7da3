"""Going on with a run whose users are not those it began with, or whose nodes are gone."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flower_privsyn.errors import BudgetExceededError, ConfigError, FederationError, GenerationError
from flower_privsyn.files import is_disk_full
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    Phase,
    Plan,
    PrivacyLedger,
    Release,
    calibrate_noise_multiplier,
)
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.run import RunDirectory
from flower_privsyn.strategies import (
    PrivateSumConfig,
    RecordSource,
    ReleasedSum,
    RunContext,
    State,
)
from tests.support.federation import make_users, rounds_asked, silent
from tests.support.launched import launched
from tests.support.ledgers import begin
from tests.support.probe import Killed, Probe, ProbeMethod, killed_in
from tests.support.run_files import releases
from tests.support.small_disk import disk_of

Builder = Callable[..., Any]


def broken(self: Any, state: State) -> dict[str, Any]:
    raise GenerationError("the server is down")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    with disk_of("512k", tmp_path / "disk") as folder:
        yield folder


@pytest.mark.parametrize(("candidates", "left"), [(20, 0), (12_000, 2**16)])
def test_a_run_without_room_goes_on_once_there_is_some(
    federation: Builder, config: Builder, small_disk: Path, candidates: int, left: int
) -> None:
    path, filler = small_disk / "run", small_disk / "filler"
    strategy = Probe(config(run_dir=str(path)), candidates=candidates)

    def fill() -> None:
        if len(strategy.released) == 1:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while shutil.disk_usage(small_disk).free > left:
                    file.write(bytes(4096))

    strategy.method.before_update = fill
    with pytest.raises(OSError, match="No space left") as caught:
        strategy.start(federation())
    assert is_disk_full(caught.value)
    filler.unlink()
    again = Probe(config(run_dir=str(path), resume=True), candidates=candidates)
    again.start(federation())
    assert [line["interrupted"] for line in releases(path)] == [False] * 3
    assert [(line["round"], line["released"]) for line in again.run.metrics()] == [
        (number, True) for number in (1, 2, 3)
    ]


class TestResultWithoutNodes:
    """What is paid for can be had without asking anybody again."""

    def pay(self, monkeypatch: pytest.MonkeyPatch, strategy: Probe, grid: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(type(strategy.method), "finish", broken)
            with pytest.raises(GenerationError):
                strategy.start(grid)

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {
                "sampling": "fixed-size",
                "sample_size": 4,
                "noise_multiplier": 1.0,
                "accountant": "rdp",
            },
        ],
    )
    def test_after_the_last_release_no_node_is_needed(
        self,
        federation: Builder,
        config: Builder,
        monkeypatch: pytest.MonkeyPatch,
        settings: dict[str, Any],
    ) -> None:
        first = Probe(config(num_rounds=2, num_users=12, **settings))
        self.pay(monkeypatch, first, federation())
        gone = federation(num_nodes=1)
        strategy = Probe(config(num_rounds=2, num_users=12, resume=True, **settings))
        strategy.start(gone)
        assert gone.requests == []
        assert strategy.run.status == "finished"


class Reading(ProbeMethod):
    """Reads every release so far after every round, and all of them at the end."""

    def setup(self, place: RunContext) -> tuple[RecordSource, ...]:
        self.seen: list[list[float]] = []
        return super().setup(place)

    def step(self, state: State, release: ReleasedSum, scratch: Path) -> State:
        found = [self.place.released(number) for number in range(1, release.round_number + 2)]
        assert found[-1] is None  # the round to come
        assert np.array_equal(found[-2].values, release.values)
        self.seen.append([one.expected_users for one in found[:-1] if one is not None])
        return super().step(state, release, scratch)

    def finish(self, state: State) -> dict[str, Any]:
        rounds = self.place.run.rounds_with_outcome("released")
        assert all(self.place.released(number) is not None for number in rounds)
        return {}


class TestReleases:
    """What a method gets of the rounds before, while the run goes on."""

    def test_they_are_those_of_the_ledger_as_it_stands(
        self, federation: Builder, config: Builder
    ) -> None:
        first = Probe(config(num_rounds=4), method=Reading)
        with pytest.raises(FederationError, match="two rounds in a row were lost"):
            first.start(federation(tamper=silent(2)))
        # Round 2 is asked again, of fewer users.
        again = Probe(config(num_rounds=4, resume=True), method=Reading)
        again.start(federation(make_users(5)))
        assert again.method.seen == [[12.0, 5.0], [12.0, 5.0, 5.0], [12.0, 5.0, 5.0, 5.0]]


class TestNodesThatAreGoneForGood:
    """A deployed run goes on without them where nothing depends on how many nodes there are."""

    @pytest.fixture
    def left(self, federation: Builder) -> Callable[[], Any]:
        """The nodes of two that are left: one, with the six users that it had."""
        here = [{"partition-id": 0, "num-partitions": 2}]
        return lambda: federation(node_configs=here)

    def pay(self, federation: Builder, strategy: Probe) -> None:
        """Let a run die in its second round."""
        with pytest.raises(Killed):
            killed_in(strategy, 2).start(federation())

    def test_a_run_goes_on_at_the_same_noise(
        self, federation: Builder, left: Builder, config: Builder, tmp_path: Path
    ) -> None:
        self.pay(federation, Probe(config(num_users=6)))
        grid, strategy = left(), Probe(config(num_users=6, num_nodes=1, resume=True))
        strategy.start(grid)
        assert rounds_asked(grid) == [3]
        written = releases(tmp_path / "run")
        assert [line["round"] for line in written] == [1, 2, 3]
        assert len({line["noise_multiplier"] for line in written}) == 1
        assert 3.9 < written[-1]["epsilon_release"] <= 4.0 * (1 + 1e-6)
        assert [line.get("num_users") for line in strategy.run.metrics()] == [12, 12, 6]
        (change,) = strategy.run.document["changes"]
        assert change["settings"] == {"num-nodes": {"from": 2, "to": 1}}

    def test_so_does_one_whose_noise_was_paid_for_with_the_first_round(
        self, federation: Builder, left: Builder, votes: Builder, tmp_path: Path
    ) -> None:
        self.pay(federation, Probe(votes(epsilon=2.0)))
        paid = releases(tmp_path / "run")[-1]["epsilon_release"]
        grid = left()
        strategy = Probe(votes(epsilon=2.0, num_nodes=1, resume=True))
        strategy.start(grid)
        assert rounds_asked(grid) == [3, 4, 5, 6, 7, 8]
        written = releases(tmp_path / "run")
        assert [line["round"] for line in written] == list(range(1, 9))
        assert {line["epsilon_release"] for line in written} == {paid}
        assert len({line["noise_multiplier"] for line in written}) == 1

    def test_not_where_they_would_be_dealt_the_users_anew(
        self, federation: Builder, left: Builder, config: Builder, tmp_path: Path
    ) -> None:
        self.pay(federation, Probe(config()))
        launched(RunDirectory(tmp_path / "run"))
        with pytest.raises(ConfigError, match="num-nodes = 1 differs from the 2"):
            Probe(config(num_nodes=1, resume=True)).start(left())

    def test_not_where_every_node_adds_its_share_of_the_noise(
        self,
        federation: Builder,
        config: Builder,
        node_state: Path,
    ) -> None:
        secure = {"secure_aggregation": True, "colluding_nodes": 0, "least_nodes": 4}
        strategy = Probe(config(**secure, num_nodes=6))
        with pytest.raises(Killed):
            killed_in(strategy, 2).start(federation(num_nodes=6))
        fewer = federation(num_nodes=5)
        with pytest.raises(ConfigError, match="num-nodes = 5 differs from the 6"):
            Probe(config(**secure, num_nodes=5, resume=True)).start(fewer)
        with pytest.raises(FederationError, match=r"6 were planned \(num-nodes\); nothing more"):
            Probe(config(**secure, num_nodes=6, resume=True)).start(fewer)
        assert fewer.requests == []


class TestUnitOfPrivacy:
    """Who is a user stays the same over all rounds that one ledger adds up."""

    VALUES: ClassVar[dict[str, Any]] = {
        "epsilon": 4.0,
        "num-rounds": 3,
        "node-timeout": 0.2,
        "accept-noise": True,
        "data": "users.jsonl",
        "client-column": "client_id",
        "text-column": "text",
        "date-column": "",
    }

    def settings(self, tmp_path: Path, **changes: Any) -> PrivateSumConfig:
        new = {key.replace("_", "-"): value for key, value in changes.items()}
        place = {"run-dir": str(tmp_path / "run")}
        return PrivateSumConfig.from_run_config({**self.VALUES, **place, **new})

    def begin(self, tmp_path: Path, grid: Any) -> None:
        with pytest.raises(Killed):
            killed_in(Probe(self.settings(tmp_path)), 2).start(grid)

    @pytest.mark.parametrize("key", ["data", "client_column", "text_column", "date_column"])
    def test_columns_and_data_stay(self, federation: Builder, tmp_path: Path, key: str) -> None:
        self.begin(tmp_path, federation())
        grid = federation()
        name = key.replace("_", "-")
        with pytest.raises(ConfigError, match=f"{name} = 'doc' differs from the"):
            Probe(self.settings(tmp_path, resume=True, **{key: "doc"})).start(grid)
        assert grid.requests == []

    @pytest.mark.parametrize("before", ["", "customer"])
    def test_a_column_that_only_one_of_the_two_names_is_no_other(
        self, federation: Builder, tmp_path: Path, before: str
    ) -> None:
        """An app need not declare them, and its `settings` may name them once and not again."""

        def settings(column: str, **changes: Any) -> PrivateSumConfig:
            named = f'client-column = "{column}"' if column else ""
            undeclared = {"data": "users.jsonl", "settings": named}
            place = {"run-dir": str(tmp_path / "run"), **changes}
            own = {key: value for key, value in self.VALUES.items() if "column" not in key}
            return PrivateSumConfig.from_run_config({**own, **undeclared, **place})

        with pytest.raises(Killed):
            killed_in(Probe(settings(before)), 2).start(federation())
        grid = federation()
        after = "" if before else "customer"
        with pytest.raises(ConfigError, match=f"client-column = '{after or 'client_id'}' differs"):
            Probe(settings(after, resume=True)).start(grid)
        assert grid.requests == []
        said = before or "client_id"
        Probe(settings(said, resume=True)).start(grid)
        assert rounds_asked(grid) == [3]

    def test_they_are_free_when_nobody_is_asked_any_more(
        self, federation: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        TestResultWithoutNodes().pay(monkeypatch, Probe(self.settings(tmp_path)), federation())
        Probe(self.settings(tmp_path, resume=True, data="gone.jsonl")).start(federation())
        run = RunDirectory.open(tmp_path / "run")
        assert run.owner.own["settings"]["data"] == "gone.jsonl"
        assert "gone.jsonl" not in run.config_file.read_text()


class TestFewerUsers:
    """Rounds that became dearer get more noise, so that the run reaches its end within budget."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        "epsilon": 2.0,
        "num_rounds": 4,
        "sampling": "fixed-size",
        "sample_size": 4,
    }

    def test_a_run_with_fewer_users_reaches_its_end(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = killed_in(Probe(config(**self.SETTINGS)), 2)
        with pytest.raises(Killed):
            strategy.start(federation(make_users(12)))
        fewer = Probe(config(**self.SETTINGS, resume=True))
        grid = federation(make_users(4))
        fewer.start(grid)
        assert rounds_asked(grid) == [3, 4]
        written = releases(tmp_path / "run")
        assert [line["round"] for line in written] == [1, 2, 3, 4]
        assert 1.96 < written[-1]["epsilon_release"] <= 2.0 * (1 + 1e-6)
        assert written[2]["noise_multiplier"] == written[3]["noise_multiplier"]
        assert fewer.plan.phases[0].noise_multiplier == written[3]["noise_multiplier"]

    def ledger(self, tmp_path: Path, charged: int, multiplier: float) -> RunDirectory:
        run = RunDirectory.create(tmp_path / "made", config={})
        with PrivacyLedger.create(run.ledger_file, delta=1e-6, epsilon_budget=2.0) as made:
            for number in range(1, charged + 1):
                begin(
                    made,
                    round=number,
                    query="votes",
                    mechanism=GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=1.0),
                    sampling=FullParticipation(12),
                    planned_users=12,
                )
                made.charge(round=number, num_users=12)
        run.unlock()
        return run

    def planned(self, rounds: int) -> float:
        return calibrate_noise_multiplier(
            epsilon=2.0, delta=1e-6, rounds=rounds, sampling=FullParticipation()
        )

    def rest(self, run: RunDirectory) -> float:
        """The noise of the rounds that are left of four, of twelve users at epsilon 2."""
        phase = Phase(
            name="votes",
            rounds=4,
            sampling=FullParticipation(12),
            asks=(NearestNeighborHistogram(max_samples=8),),
        )
        settled = calibrated(
            Plan(phases=(phase,), delta=1e-6),
            epsilon=2.0,
            ledger=PrivacyLedger.read(run.ledger_file),
        )
        assert settled.phases[0].noise_multiplier is not None
        return settled.phases[0].noise_multiplier

    @pytest.mark.parametrize("times", [0.9, 0.999, 1.0, 1.2])
    def test_the_noise_is_the_least_that_fits_and_never_below_the_plan(
        self, tmp_path: Path, times: float
    ) -> None:
        planned = self.planned(4)
        run = self.ledger(tmp_path, 3, times * planned)
        needed = self.rest(run)
        if times >= 1:
            assert needed == planned
            return
        assert needed > planned
        with PrivacyLedger.open(run.ledger_file) as ledger:
            for multiplier, fits in ((needed, True), (needed / 1.011, False)):
                left = Release(noise_multiplier=multiplier, sampling=FullParticipation(12))
                assert ledger.allows({left: 1}) is fits

    def test_no_noise_makes_up_for_a_budget_that_is_gone(self, tmp_path: Path) -> None:
        run = self.ledger(tmp_path, 3, self.planned(3))
        with pytest.raises(BudgetExceededError, match="the rounds that are left do not fit"):
            self.rest(run)
