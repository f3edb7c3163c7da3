"""Every tracker is written to by a run in Flower's simulation, and read back by its own library."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.trackers import figures_of
from tests.support.federation_app import write_app
from tests.support.simulation import simulate
from tests.support.tracked import mlflow_run, tensorboard_points, wandb_run


@pytest.mark.slow  # tests/runs/test_trackers.py has all three without Flower
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_a_run_is_read_back_from_its_tracker(
    tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(tracker)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("WANDB_MODE", "offline")
    app = write_app(tmp_path / "app")
    assert simulate(app, tmp_path / "run", tracker=tracker) is None

    run = RunDirectory.open(tmp_path / "run")
    figures = figures_of(run)
    if tracker == "tensorboard":
        points, moments = tensorboard_points(run.path / "tensorboard")
    elif tracker == "mlflow":
        found, points, moments = mlflow_run()
        assert (found.info.status, found.data.params) == ("FINISHED", figures.settings)
    else:
        settings, points, moments = wandb_run(run.owner.path)
        assert figures.settings.items() <= settings.items()
    # TensorBoard keeps figures in 32 bits.
    told = [(step, name, pytest.approx(value)) for step, name, value in sorted(figures.points)]
    assert sorted(points) == told
    assert {step for step, _, _ in points} == {1, 2}
    assert moments == {round(1000 * figures.created) if tracker == "mlflow" else figures.created}
