"""Trackers hold what the run directory holds, by their own libraries, and no time but one."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.runs import RunDirectory, trackers
from flower_privsyn.runs.locks import read_holder
from flower_privsyn.runs.trackers import (
    Figures,
    MLflow,
    TensorBoard,
    WeightsAndBiases,
    figures_of,
    tell,
)
from tests.support import golden_runs
from tests.support.probe import Probe
from tests.support.run_files import add_line
from tests.support.tracked import mlflow_run, tensorboard_points, wandb_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    config = {"num-rounds": 3, "data": "/secret/place", "run-dir": "/home/me", "epsilon": 2.0}
    made = RunDirectory.create(tmp_path / "run", config=config, strategy="POPri")
    add_line(made, {"round": 1, "released": True, "epsilon_release": 0.5, "note": "x"})
    add_line(made, {"round": 2, "released": False, "epsilon_release": float("nan")})
    return made


POINTS = [(1, "released", 1.0), (1, "epsilon_release", 0.5), (2, "released", 0.0)]


def test_figures_are_numbers_of_rounds_and_settings_without_places(run: RunDirectory) -> None:
    figures = figures_of(run)
    assert list(figures.points) == POINTS
    assert figures.settings == {"num-rounds": "3", "epsilon": "2.0"}
    assert figures.created == datetime.fromisoformat(run.document["created"]).timestamp()


def test_tensorboard_reads_every_figure_and_one_time(run: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    assert tell(TensorBoard(), run)
    (file,) = (run.path / "tensorboard").iterdir()
    before = file.read_bytes()
    assert tell(TensorBoard(), run)
    assert file.read_bytes() == before
    add_line(run, {"round": 3, "released": True})
    assert tell(TensorBoard(), run)
    found, moments = tensorboard_points(file.parent)
    assert moments == {figures_of(run).created}
    assert found == [*POINTS, (3, "released", 1.0)]
    assert b"/secret" not in file.read_bytes()


def test_mlflow_goes_on_with_the_run_it_has(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    assert tell(MLflow(), run)
    add_line(run, {"round": 3, "released": True})
    run.mark_finished()
    assert tell(MLflow(), run)
    found, points, moments = mlflow_run()
    moment = round(1000 * figures_of(run).created)
    assert (found.info.start_time, found.info.end_time) == (moment, moment)
    assert found.info.status == "FINISHED"
    assert found.data.params == {"num-rounds": "3", "epsilon": "2.0"}
    assert sorted(points) == sorted([*POINTS, (3, "released", 1.0)])
    assert moments == {moment}


def test_weights_and_biases_hears_all_at_the_end_and_one_time(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert tell(WeightsAndBiases(), run)
    assert not run.owner.path.exists() or not list(run.owner.path.rglob("*.wandb"))
    add_line(run, {"round": 3, "released": True})
    run.mark_finished()
    assert tell(WeightsAndBiases(), run)
    assert tell(WeightsAndBiases(), run)
    (file,) = run.owner.path.rglob("*.wandb")
    assert b"/secret" not in file.read_bytes()
    settings, found, moments = wandb_run(run.owner.path)
    assert {key: settings[key] for key in ("num-rounds", "epsilon")} == {
        "num-rounds": "3",
        "epsilon": "2.0",
    }
    assert sorted(found) == sorted([*POINTS, (3, "released", 1.0)])
    assert moments == {figures_of(run).created}


def test_a_tracker_that_fails_costs_nothing(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def write(self, run: RunDirectory, figures: Figures) -> None:
            raise ConnectionError("no route to http://me:pass@word@tracker:5000/api")

    assert not tell(Broken(), run)
    said = "the tracker was not told: ConnectionError: no route to http://tracker:5000/api"
    assert said in caplog.text  # without the password, which would be in progress.json


class Listening:
    """Hears all, and may fail after that."""

    def __init__(self, *, fails: bool = False) -> None:
        self.told: list[tuple[str, Figures]] = []
        self._fails = fails

    def write(self, run: RunDirectory, figures: Figures) -> None:
        self.told.append((run.status, figures))
        if self._fails:
            raise ConnectionError("and is gone again")


def test_a_tracker_hears_of_a_failure_before_others_may_work_on_the_run(
    federation: Callable[..., Any], config: Callable[..., Any]
) -> None:
    heard: list[tuple[str, int | None]] = []

    class Holding(Listening):
        def write(self, run: RunDirectory, figures: Figures) -> None:
            super().write(run, figures)
            holder = read_holder(run.path / ".lock")
            heard.append((run.status, holder and holder[0]))

    strategy = Probe(config())
    strategy.tracker = Holding()

    def break_down() -> None:
        if strategy.released:
            raise GenerationError("the server is down")

    strategy.method.before_update = break_down
    with pytest.raises(GenerationError):
        strategy.start(federation())
    assert heard == [("running", os.getpid()), ("failed", os.getpid())]


def test_a_real_run_tells_its_tracker_after_every_round_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = Listening()
    told = listening.told
    monkeypatch.setattr(trackers, "tracker_of", lambda name: listening)
    golden_runs.run("private-evolution poisson", tmp_path)
    statuses = [status for status, _ in told]
    assert statuses == ["running"] * (len(told) - 1) + ["finished"]
    rounds = sorted({step for step, _, _ in told[-1][1].points})
    assert len(told) == len(rounds) + 1
    # Who took part is secret under Poisson sampling, and no figure counts it.
    assert not {name for _, name, _ in told[-1][1].points} & {"num_users", "num_nodes", "answers"}
    assert not {"run-dir", "resume", "data"} & set(told[-1][1].settings)
