"""`privsyn track`: the figures of a run, to a tracker of experiments, once more."""

from __future__ import annotations

from typing import Annotated

from flower_privsyn.cli.options import RunDir, option


def track(
    run_dir: RunDir,
    tracker: Annotated[
        str | None,
        option("NAME", "tensorboard, mlflow or wandb (default: the run's setting tracker)"),
    ] = None,
) -> int:
    """Send to a tracker what it lacks of a run at which no process works.

    DIR is the run directory. It is what the run itself does at its end, for when the tracker could
    not be reached then, or there was none.
    """
    from flower_privsyn.errors import ConfigError
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.runs.handed_over import named
    from flower_privsyn.runs.trackers import send

    run = RunDirectory.open(run_dir)
    name = tracker or named(
        run,
        "tracker",
        here=lambda tracker: tracker in ("", "tensorboard"),
        instead="name it with --tracker",
    )
    if not name:
        raise ConfigError("The run has no tracker: --tracker names tensorboard, mlflow or wandb.")
    send(run, name)
    print(f"{name} has the figures of {run.path}")
    return 0
