"""What trackers hold, read by their own libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: A figure: round, name, value.
Point = tuple[int, str, float]


def tensorboard_points(folder: Path) -> list[Point]:
    """Figures of the event files of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [
        (point.step, name, point.value)
        for name in read.Tags()["scalars"]
        for point in read.Scalars(name)
    ]


def mlflow_run() -> tuple[Any, list[Point]]:
    """The one run of the experiment, and its figures."""
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("flower-privsyn").experiment_id
    (found,) = client.search_runs([experiment])
    history = [
        (point.step, name, point.value)
        for name in found.data.metrics
        for point in client.get_metric_history(found.info.run_id, name)
    ]
    return found, history
