"""Trackers hold what the run directory holds, by their own libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError, MissingExtraError
from flower_privsyn.locks import read_holder
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.trackers import Following
from tests.support.probe import Probe
from tests.support.run_files import add_line
from tests.support.tracked import mlflow_run, tensorboard_points


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    config = {"num-rounds": 3, "data": "/secret/place", "run-dir": "/home/me", "epsilon": 2.0}
    made = RunDirectory.create(tmp_path / "run", config=config, strategy="POPri")
    add_line(made, {"round": 1, "released": True, "epsilon_release": 0.5, "note": "x"})
    add_line(made, {"round": 2, "released": False, "epsilon_release": float("nan")})
    return made


POINTS = [(1, "released", 1.0), (1, "epsilon_release", 0.5), (2, "released", 0.0)]
ALL = sorted([*POINTS, (3, "released", 1.0)])


class Listening:
    """Hears all, and may fail after that."""

    def __init__(self, *, fails: bool = False) -> None:
        self.begun: list[Mapping[str, str]] = []
        self.points: list[tuple[int, str, float]] = []
        self.ends: list[str] = []
        self.fails = fails

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        self.begun.append(settings)

    def log(self, number: int, figures: Mapping[str, float]) -> None:
        if self.fails:
            raise ConnectionError("no route to http://me:pass@word@tracker:5000/api")
        self.points += [(number, name, value) for name, value in figures.items()]

    def end(self, status: str) -> None:
        self.ends.append(status)


def follow(name: str) -> Following:
    """The tracker of a setting, as a process that works on a run has it."""
    found = Following.of(name, None)
    assert found is not None
    return found


def test_a_process_tells_every_figure_once_and_a_resumed_run_from_its_first_round(
    run: RunDirectory,
) -> None:
    first, second = Listening(), Listening()
    following = Following(first)
    following.tell(run)
    following.tell(run)
    assert first.points == POINTS
    assert first.begun == [{"strategy": "POPri", "num-rounds": "3", "epsilon": "2.0"}]
    add_line(run, {"round": 3, "released": True})
    run.mark_finished()
    Following(second).tell(run)  # of a run that was resumed
    assert (sorted(second.points), second.ends) == (ALL, ["finished"])


def test_tensorboard_reads_every_figure(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    following = follow("tensorboard")
    following.tell(run)
    add_line(run, {"round": 3, "released": True})
    run.mark_finished()
    following.tell(run)
    folder = run.owner.path / "tensorboard"
    assert sorted(tensorboard_points(folder)) == ALL
    assert all(b"/secret" not in file.read_bytes() for file in folder.iterdir())


def test_mlflow_has_every_figure(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    following = follow("mlflow")
    following.tell(run)
    add_line(run, {"round": 3, "released": True})
    run.mark_finished()
    following.tell(run)
    found, points = mlflow_run()
    assert found.info.status == "FINISHED"
    assert found.data.params == {"strategy": "POPri", "num-rounds": "3", "epsilon": "2.0"}
    assert sorted(points) == ALL


def test_a_tracker_that_fails_costs_nothing_and_catches_up(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Listening(fails=True)
    following = Following(broken)
    following.tell(run)
    said = "the tracker was not told: ConnectionError: no route to http://tracker:5000/api"
    assert said in caplog.text
    broken.fails = False
    following.tell(run)
    assert not broken.points  # left alone until the run has ended
    run.mark_finished()
    following.tell(run)
    assert (broken.points, broken.ends) == (POINTS, ["finished"])


def test_a_library_that_is_missing_is_named_before_a_run_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="wandb"):
        Following.of("wandb", None)


def test_a_tracker_hears_of_a_failure_before_others_may_work_on_the_run(
    federation: Callable[..., Any], config: Callable[..., Any]
) -> None:
    heard: list[tuple[str, int | None]] = []
    strategy = Probe(config())

    class Holding(Listening):
        def end(self, status: str) -> None:
            holder = read_holder(strategy.run.path / ".lock")
            heard.append((status, holder and holder[0]))

    strategy.tracker = Holding()

    def break_down() -> None:
        if strategy.released:
            raise GenerationError("the server is down")

    strategy.method.before_update = break_down
    with pytest.raises(GenerationError):
        strategy.start(federation())
    assert heard == [("failed", os.getpid())]
    assert strategy.tracker.points


def test_a_run_tells_its_tracker_after_every_round_and_at_the_end(
    federation: Callable[..., Any], config: Callable[..., Any]
) -> None:
    poisson = {"sampling": "poisson", "sampling_rate": 0.5, "accountant": "rdp"}
    strategy = Probe(config(num_rounds=2, **poisson))
    listening = strategy.tracker = Listening()
    strategy.start(federation())
    assert listening.ends == ["finished"]
    (settings,) = listening.begun
    assert sorted({number for number, _, _ in listening.points}) == [1, 2]
    # Who took part is secret under Poisson sampling, and no figure counts it.
    assert not {name for _, name, _ in listening.points} & {"num_users", "num_nodes", "answers"}
    assert not {"run-dir", "resume", "data"} & set(settings)
