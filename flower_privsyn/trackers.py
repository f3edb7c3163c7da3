"""Trackers of experiments: TensorBoard, MLflow and Weights & Biases, by their own calls.

They know a run by a name, its settings and a folder of its owner. Libraries of trackers write the
moment of every figure, and how long a round took may say how much somebody wrote: whoever names a
tracker sends times to it.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from flower_privsyn.errors import MissingExtraError

_PROJECT: Final = "flower-privsyn"

#: For MLflow, whose patience is minutes for every request, and between two rounds a run waits.
_PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class Tracker(Protocol):
    """Where figures go: one of those that settings name, or `tracker` of a strategy."""

    def begin(self, name: str, settings: Mapping[str, str], folder: Path, known: str) -> str:
        """Begin to track a run, or go on: called once in a process, before its first figure.

        Args:
            name: for people.
            settings: of the run, without places.
            folder: of the run's owner, for what is kept on this machine.
            known: what this returned when the run was first told of; "" before that.

        Returns:
            What the tracker calls the run.
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

    def begin(self, name: str, settings: Mapping[str, str], folder: Path, known: str) -> str:
        """See `Tracker`."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        if not known:
            told = [f"{key} = {value}" for key, value in sorted(settings.items())]
            self._writer.add_text("settings", "  \n".join(told))
        return name

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

    def begin(
        self,
        name: str,
        settings: Mapping[str, str],
        folder: Path,  # noqa: ARG002 - nothing is kept here
        known: str,
    ) -> str:
        """See `Tracker`."""
        from mlflow import MlflowClient

        for key, value in _PATIENCE.items():
            os.environ.setdefault(key, value)
        self._client, self._name = MlflowClient(), known
        if known:
            self._client.update_run(known, status="RUNNING")
            return known
        found = self._client.get_experiment_by_name(_PROJECT)
        made = self._client.create_run(
            self._client.create_experiment(_PROJECT) if found is None else found.experiment_id,
            run_name=name,
        )
        self._name = str(made.info.run_id)
        for key, value in settings.items():
            self._client.log_param(self._name, key, value[:500])
        return self._name

    def log(self, number: int, figures: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in figures.items():
            self._client.log_metric(self._name, name, value, step=number)

    def end(self, status: str) -> None:
        """See `Tracker`."""
        self._client.set_terminated(self._name, status.upper())


class WeightsAndBiases:
    """A run of the project "flower-privsyn", where its own `WANDB_...` say.

    Source code, console, machine and its use stay here.
    """

    def begin(self, name: str, settings: Mapping[str, str], folder: Path, known: str) -> str:
        """See `Tracker`."""
        import wandb

        called = known or secrets.token_hex(4)
        self._run: Any = wandb.init(
            project=_PROJECT,
            id=called,
            resume="allow",
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
        return called

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
