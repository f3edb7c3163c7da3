"""Trackers of experiments, by their own calls, are told what the run directory says, when it does.

They are told the settings without places, and after every round the numbers of `metrics.jsonl`.
What counts people is in those lines only where the run directory may hold it
(`AskedRound.outcome`). Libraries of trackers write the moment of every figure, and how long a round
took may say how much somebody wrote: whoever names a tracker sends times to it. What they keep on
this machine is in the owner's folder.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from flower_privsyn.errors import MissingExtraError
from flower_privsyn.run.directory import RunDirectory
from flower_privsyn.run.run_format import LEDGER_KEY

logger = logging.getLogger("flwr.privsyn")

_PROJECT: Final = "flower-privsyn"

#: For MLflow, whose patience is minutes for every request, and between two rounds a run waits.
_PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Tracker(Protocol):
    """Where figures go: one of those that settings name, or `tracker` of a strategy."""

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        """Begin to track a run: called once in a process, before its first figure.

        Args:
            name: for people.
            settings: of the run, without places.
            folder: of the run's owner, for what is kept on this machine.
        """

    def log(self, number: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a round; of one that was discarded and asked again twice."""

    def end(self, status: str) -> None:
        """The run has ended: "finished" or "failed"; a resumed one begins again."""


def require_tracker(name: str) -> None:
    """Refuse a tracker whose library is not installed, before a run is begun; it is not imported.

    Args:
        name: "", "tensorboard", "mlflow" or "wandb".

    Raises:
        MissingExtraError: its library is not installed.
    """
    if name and importlib.util.find_spec(name) is None:
        raise MissingExtraError(
            f"tracker = \"{name}\" needs its library: pip install 'flower-privsyn[{name}]'"
        )


class TensorBoard:
    """Event files in `tensorboard` of the owner's folder."""

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:  # noqa: ARG002
        """See `Tracker`."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        told = [f"{key} = {value}" for key, value in sorted(settings.items())]
        self._writer.add_text("settings", "  \n".join(told))

    def log(self, number: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def end(self, status: str) -> None:
        """See `Tracker`."""
        self._writer.add_text("status", status)
        self._writer.close()


class MLflow:
    """A run of the experiment "flower-privsyn" where `MLFLOW_TRACKING_URI` says."""

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:  # noqa: ARG002
        """See `Tracker`."""
        import mlflow

        for key, value in _PATIENCE.items():
            os.environ.setdefault(key, value)
        mlflow.set_experiment(_PROJECT)
        mlflow.start_run(run_name=name)
        mlflow.log_params({key: value[:500] for key, value in settings.items()})

    def log(self, number: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        import mlflow

        mlflow.log_metrics(dict(figures), step=number)

    def end(self, status: str) -> None:
        """See `Tracker`."""
        import mlflow

        mlflow.end_run(status.upper())


class WeightsAndBiases:
    """A run of the project "flower-privsyn", where its own `WANDB_...` say.

    Source code, console, machine and its use stay here.
    """

    def begin(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        """See `Tracker`."""
        import wandb

        self._run: Any = wandb.init(
            project=_PROJECT,
            name=name,
            config=dict(settings),
            dir=str(folder),
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                silent=True,
                # A server that does not answer must not keep the run from ending.
                init_timeout=30.0,
                finish_timeout=60.0,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def log(self, number: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log(dict(figures), step=number)

    def end(self, status: str) -> None:
        """See `Tracker`."""
        self._run.finish(exit_code=int(status == "failed"))


TRACKERS: Final[dict[str, Callable[[], Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


#: Who asks a server, and by which password, in an address.
_LOGIN: Final = re.compile(r"(?<=://)[^/\s]*@")


class Following:
    """A tracker that a process tells of a run; one that failed, not before the run ends.

    Every process that works on a run tells all of its rounds, so a resumed one is told of whole.

    Args:
        tracker: of the run.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._begun = self._fails = False
        self._told = 0

    @classmethod
    def of(cls, name: str, own: Tracker | None) -> Following | None:
        """The tracker of a run; None where nobody is told.

        Args:
            name: as of `require_tracker`.
            own: somebody's own, which counts before that.

        Raises:
            MissingExtraError: its library is not installed.
        """
        if own is None and name:
            require_tracker(name)
            own = TRACKERS[name]()
        return None if own is None else cls(own)

    def tell(self, run: RunDirectory) -> None:
        """Tell it the lines of `metrics.jsonl` that it lacks; what goes wrong costs no round."""
        ended = run.status in ("finished", "failed")
        if self._fails and not ended:
            return
        try:
            if not self._begun:
                run.owner.make()
                self._tracker.begin(run.path.name, _settings(run), run.owner.path)
                self._begun = True
            for line in run.metrics()[self._told :]:
                self._tracker.log(int(line["round"]), _figures(line))
                self._told += 1
            if ended:
                self._tracker.end(run.status)
        except Exception as error:  # a library of others, and a server of others
            self._fails = True
            # Libraries quote the address they were given.
            said = _LOGIN.sub("", str(error))
            logger.warning(
                "the tracker was not told: %s: %s (metrics.jsonl has the figures)",
                type(error).__name__,
                said,
            )


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line but that of its round, and the digest it states."""
    return {
        name: float(value)
        for name, value in line.items()
        if name not in ("round", LEDGER_KEY)
        and isinstance(value, int | float)
        and math.isfinite(value)
    }


def _settings(run: RunDirectory) -> dict[str, str]:
    """Of the run, as text."""
    found = {key: "" if value is None else str(value) for key, value in run.config.items()}
    return {"strategy": run.document.get("strategy") or "", **found}
