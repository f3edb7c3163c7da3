"""Figures of a run for trackers of experiments: what the run directory says, and nothing else.

A tracker is told the settings, and after every round the numbers of `metrics.jsonl`. It hears no
time but that of the run's creation: how long a round took may say how much somebody wrote, and
libraries of trackers write the moment of every figure unless they are given one. What counts
people is in those lines only where the run directory may hold it (`AskedRound.outcome`).

Adapters are told all figures every time, and write those that they lack. So a resumed run goes on
in the tracked run it has, and whatever failed to arrive is caught up with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

from flower_privsyn.errors import MissingExtraError
from flower_privsyn.files import replacing
from flower_privsyn.runs.directory import RunDirectory
from flower_privsyn.runs.run_format import LEDGER_KEY, stamp_of

logger = logging.getLogger("flwr.privsyn")

#: How a run ends, as MLflow calls it.
_ENDS: Final = {"finished": "FINISHED", "failed": "FAILED"}

#: For MLflow between two rounds: a run waits, and what did not arrive is sent at its end.
_PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}

#: Who asks a server, and by which password, in an address.
_LOGIN: Final = re.compile(r"(?<=://)[^/\s]*@")

#: What is no figure of a line: its number, and the digest that it states.
_NO_FIGURES: Final = frozenset({"round", LEDGER_KEY})


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that a tracker is told of a run.

    Attributes:
        name: of the run directory's folder.
        strategy: the class that runs it.
        created: of the run, seconds since 1970; the one time there is.
        settings: by hyphenated key, as text, without places.
        points: (round, name, value), in the order of the rounds; finite values alone.
        stamp: what must stand at every figure, where the epsilons do not cover it; else None.
    """

    name: str
    strategy: str
    created: float
    settings: dict[str, str]
    points: tuple[tuple[int, str, float], ...]
    stamp: str | None


class Tracker(Protocol):
    """Where figures go: one of those that settings name, or `tracker` of a strategy."""

    def write(self, run: RunDirectory, figures: Figures) -> None:
        """Make the tracked run hold these figures; called again with the same and more.

        Args:
            run: its directory, for an adapter that writes into it.
            figures: all until now.
        """


def require_tracker(name: str) -> None:
    """Refuse a tracker whose library is not installed, before a run is begun; it is not imported.

    Args:
        name: as of `tracker_of`.

    Raises:
        MissingExtraError: its library is not installed.
    """
    if name and importlib.util.find_spec(name) is None:
        raise _missing(name)


def _missing(name: str) -> MissingExtraError:
    return MissingExtraError(
        f"tracker = \"{name}\" needs its library: pip install 'flower-privsyn[{name}]'"
    )


def tracker_of(name: str) -> Tracker | None:
    """The tracker of a setting; None for "".

    Args:
        name: "", "tensorboard", "mlflow" or "wandb".

    Raises:
        MissingExtraError: its library is not installed.
    """
    return _TRACKERS[name]() if name else None


def figures_of(run: RunDirectory) -> Figures:
    """The figures that the run directory holds now.

    Raises:
        RunDirectoryError: a file of the run is damaged.
    """
    document, lines = run.document, run.round_lines()
    points = [
        (int(line["round"]), name, float(value))
        for line in lines
        for name, value in line.items()
        if name not in _NO_FIGURES and isinstance(value, int | float) and math.isfinite(value)
    ]
    stamps = [str(line["stamp"]) for line in lines if line.get("stamp")]
    return Figures(
        name=run.path.name,
        strategy=str(document.get("strategy") or ""),
        created=datetime.fromisoformat(str(document["created"])).timestamp(),
        settings={key: "" if value is None else str(value) for key, value in run.config.items()},
        points=tuple(points),
        stamp=stamp_of(document) or next(iter(stamps), None),
    )


class TensorBoard:
    """One event file in the run directory, written anew after every round.

    A writer of the library would put the time into every event and the host into the file's name.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self) -> None:
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError as error:
            raise _missing("tensorboard") from error

    def write(self, run: RunDirectory, figures: Figures) -> None:
        """Write the file; see `Tracker.write`."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = run.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        moment = figures.created
        told = [f"{key} = {value}" for key, value in sorted(figures.settings.items())]
        with (
            replacing(folder / "events.out.tfevents.0000000000.run") as temporary,
            temporary.open("wb") as file,
        ):
            writer = RecordWriter(file)
            writer.write(Event(wall_time=moment, file_version="brain.Event:2").SerializeToString())
            text = "  \n".join(filter(None, (figures.stamp, figures.strategy, *told)))
            for event in (
                Event(wall_time=moment, summary=Summary(value=[_text_value("settings", text)])),
                *(
                    Event(
                        wall_time=moment,
                        step=step,
                        summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]),
                    )
                    for step, name, value in figures.points
                ),
            ):
                writer.write(event.SerializeToString())
            writer.flush()


def _text_value(tag: str, text: str) -> Any:
    """A text as TensorBoard's plugin for texts reads it."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    return Summary.Value(
        tag=tag,
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(dtype=DT_STRING, string_val=[text.encode()]),
    )


#: A figure that a tracker has: its name, round and value.
_Sent: TypeAlias = tuple[str, int, float]


class MLflow:
    """A run of the experiment "flower-privsyn" where `MLFLOW_TRACKING_URI` says.

    Which of its runs this is stands in the owner's folder: the server's address is the owner's.

    Raises:
        MissingExtraError: mlflow is not installed.
    """

    def __init__(self) -> None:
        try:
            import mlflow  # noqa: F401
        except ImportError as error:
            raise _missing("mlflow") from error
        self._there: frozenset[_Sent] | None = None  # figures; None where unknown

    def write(self, run: RunDirectory, figures: Figures) -> None:
        """Send what is lacking; see `Tracker.write`."""
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        # Unknown again, should this fail in between.
        there, self._there = self._there, None
        with _impatient():
            client, moment = MlflowClient(), round(1000 * figures.created)
            name = self._name(client, run, figures)
            if there is None:
                there = self._begin(client, name, figures)
            missing = [
                Metric(metric, value, moment, step)
                for step, metric, value in figures.points
                # Of a round that was asked again there are others than those that were sent.
                if (metric, step, value) not in there
            ]
            for part in _parts(missing, 1000):
                client.log_batch(name, metrics=part)
            if run.status in _ENDS:
                client.set_terminated(name, _ENDS[run.status], end_time=moment)
        self._there = there | {(metric.key, metric.step, metric.value) for metric in missing}

    def _name(self, client: Any, run: RunDirectory, figures: Figures) -> str:
        """Of the tracked run, which is made where there is none."""
        known = run.owner.path / "mlflow-run"
        if known.is_file():
            return known.read_text(encoding="utf-8").strip()
        found = client.get_experiment_by_name("flower-privsyn")
        made = client.create_run(
            client.create_experiment("flower-privsyn") if found is None else found.experiment_id,
            start_time=round(1000 * figures.created),
            run_name=figures.name,
            tags={"strategy": figures.strategy, "stamp": figures.stamp or ""},
        )
        run.owner.make()
        with replacing(known, for_the_owner=True) as temporary:
            temporary.write_text(str(made.info.run_id), encoding="utf-8")
        return str(made.info.run_id)

    def _begin(self, client: Any, name: str, figures: Figures) -> frozenset[_Sent]:
        """Bring settings that are lacking, of a run that goes on too; which figures are there."""
        from mlflow.entities import Param

        found = client.get_run(name)
        lacking = [
            Param(key, value[:500])
            for key, value in figures.settings.items()
            if key not in found.data.params
        ]
        for part in _parts(lacking, 100):
            client.log_batch(name, params=part)
        if found.info.status != "RUNNING":
            client.update_run(name, status="RUNNING")
        return frozenset(
            (metric, point.step, point.value)
            for metric in found.data.metrics
            for point in client.get_metric_history(name, metric)
        )


def _parts(values: list[Any], most: int) -> Iterator[list[Any]]:
    """As many at a time as a request of MLflow may hold."""
    return (values[start : start + most] for start in range(0, len(values), most))


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """MLflow's patience, which is minutes for every request, unless somebody has set it."""
    new = {key: value for key, value in _PATIENCE.items() if key not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for key in new:
            os.environ.pop(key, None)


class WeightsAndBiases:
    """A run of the project "flower-privsyn", told once: when the run here has ended.

    The library adds to every figure how long ago its own run began. All figures arrive together,
    so that this says nothing of the rounds. Source code, console, machine and its use stay here.
    Where it is told is for its own `WANDB_...` to say; what it writes is in the owner's folder.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    def __init__(self) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise _missing("wandb") from error

    def write(self, run: RunDirectory, figures: Figures) -> None:
        """Send all figures of a finished run, once; see `Tracker.write`."""
        import wandb

        told, name = run.owner.path / "wandb-run", run.owner.path / "wandb-id"
        if run.status != "finished" or told.exists():
            return
        run.owner.make()
        if not name.is_file():  # one that was killed while it told is gone on with, not doubled
            with replacing(name, for_the_owner=True) as temporary:
                temporary.write_text(secrets.token_hex(4), encoding="utf-8")
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            # A server that does not answer must not keep the run from ending.
            init_timeout=30.0,
            finish_timeout=60.0,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        tracked = wandb.init(
            project="flower-privsyn",
            id=name.read_text(encoding="utf-8").strip(),
            resume="allow",
            name=figures.name,
            notes=figures.stamp,
            tags=[figures.strategy] if figures.strategy else None,
            config=figures.settings,
            dir=str(run.owner.path),
            settings=settings,
        )
        for step, points in itertools.groupby(figures.points, key=lambda point: point[0]):
            values = {name: value for _, name, value in points}
            tracked.log({**values, "_timestamp": figures.created}, step=step)
        tracked.finish()
        with replacing(told, for_the_owner=True) as temporary:
            temporary.write_text(str(tracked.id), encoding="utf-8")


def tell(tracker: Tracker, run: RunDirectory) -> bool:
    """Tell a tracker what the run directory holds; whatever goes wrong there costs no round.

    Returns:
        Whether it was told. Where it was not, a warning says why, and the next call catches up.
    """
    try:
        tracker.write(run, figures_of(run))
    except Exception as error:  # a library of others, and a server of others
        again = "the end of the run tells it again"
        if run.status == "finished":
            again = "metrics.jsonl in the run directory has the figures"
        elif run.status != "running":
            again = "the resumed run tells it again"
        # The warning is in the run directory, and libraries quote the address that they were given.
        said = _LOGIN.sub("", str(error))
        logger.warning("the tracker was not told: %s: %s (%s)", type(error).__name__, said, again)
        return False
    return True


_TRACKERS: Final[dict[str, Callable[[], Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


class Following:
    """A tracker that is told of a run while it lasts; one that failed, not before the run ends.

    Args:
        tracker: of the run.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._fails = False

    @classmethod
    def of(cls, name: str, own: Tracker | None) -> Following | None:
        """The tracker of a run; None where nobody is told.

        Args:
            name: as of `tracker_of`.
            own: somebody's own, which counts before that.

        Raises:
            MissingExtraError: its library is not installed.
        """
        tracker = tracker_of(name) if own is None else own
        return None if tracker is None else cls(tracker)

    def tell(self, run: RunDirectory) -> None:
        """Tell it what the run directory holds, as `tell` does."""
        if not self._fails or run.status != "running":
            self._fails = not tell(self._tracker, run)
