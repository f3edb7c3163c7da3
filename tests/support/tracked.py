"""What trackers hold, read by their own libraries."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

#: A figure: round, name, value.
Point = tuple[int, str, float]


def tensorboard_points(folder: Path) -> tuple[list[Point], set[float]]:
    """Figures of the one event file of a folder, and the times of all its events."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    (file,) = folder.iterdir()
    events = list(LegacyEventFileLoader(str(file)).Load())
    points = [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
        if value.HasField("simple_value")
    ]
    return points, {event.wall_time for event in events}


def mlflow_run() -> tuple[Any, list[Point], set[int]]:
    """The one run of the experiment, its figures and their times in milliseconds."""
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("flower-privsyn").experiment_id
    (found,) = client.search_runs([experiment])
    history = [
        (point.step, name, point.value, point.timestamp)
        for name in found.data.metrics
        for point in client.get_metric_history(found.info.run_id, name)
    ]
    return found, [(step, name, v) for step, name, v, _ in history], {h[3] for h in history}


def wandb_run(folder: Path) -> tuple[dict[str, Any], list[Point], set[float]]:
    """Settings of the one offline run below a folder, its figures and their times."""
    (file,) = folder.rglob("*.wandb")
    records = _records(file)
    (config,) = [one.run.config for one in records if one.WhichOneof("record_type") == "run"][:1]
    points: list[Point] = []
    moments = set()
    for one in records:
        if one.WhichOneof("record_type") == "history":
            items = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in one.history.item
            }
            moments.add(items.pop("_timestamp"))
            step = items.pop("_step")
            points += [(step, name, value) for name, value in items.items() if name[0] != "_"]
    settings = {item.key: json.loads(item.value_json) for item in config.update}
    return settings, points, moments


def _records(file: Path) -> list[Any]:
    """Of a file of Weights & Biases: a log of LevelDB, in blocks that long records go on beyond."""
    from wandb.proto import wandb_internal_pb2

    data, found, place, whole = file.read_bytes(), [], 7, b""  # after the file's own header
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # the end of a block, too short for a header
            place += left
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(wandb_internal_pb2.Record.FromString(whole))
            whole = b""
    return found
