"""Where runs go that nobody gave a folder."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from flower_privsyn.environment import RESUME, RUN_DIRECTORY, RUNS_FOLDER, WORKING_DIRECTORY
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, user_path


def unnamed_run(app_name: str) -> tuple[Path, bool]:
    """Where a strategy that names no run directory runs, and whether it continues a run there.

    Under `privsyn run` and `privsyn resume` that is the directory of the command, else a new one.

    Args:
        app_name: Name for a new folder.
    """
    if path := os.environ.get(RUN_DIRECTORY):
        return Path(path), os.environ.get(RESUME) == "1"
    return default_run_directory(app_name), False


def named_run(run_dir: str, *, resume: bool | Literal["auto"]) -> Path:
    """The run directory that a setting names.

    Args:
        run_dir: the setting, not empty; relative to the folder the command was typed in.
        resume: whether a run is continued there; "auto": or begun.

    Raises:
        ConfigError: `resume` is "auto", and where the folder is depends on where Flower was
            started.
    """
    if resume == "auto" and not (
        expanded(run_dir).is_absolute() or os.environ.get(WORKING_DIRECTORY)
    ):
        # With true a run is missing there; here it would be begun, and everybody asked again.
        raise ConfigError(
            f'resume = "auto" needs an absolute run-dir, got {run_dir!r}: from another folder it '
            "would find no run, begin a new one, and charge the same people again"
        )
    return user_path(run_dir)


def default_run_directory(app_name: str) -> Path:
    """A new folder for a run that was given none: `$PRIVSYN_RUNS` or `~/privsyn-runs`.

    Args:
        app_name: Name of the app; the folder is `<app>-<UTC time>`.
    """
    base = os.environ.get(RUNS_FOLDER)
    root = expanded(base) if base else Path.home() / "privsyn-runs"
    return new_run_path(root, app_name)


def new_run_path(root: Path, app_name: str) -> Path:
    """A path below `root` that does not exist yet, `<app>-<UTC time>`; nothing is created."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", app_name).strip("-.") or "run"
    path = root.absolute() / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    for number in range(2, 1000):
        if not path.exists():
            break
        path = path.with_name(f"{path.name.split('_')[0]}_{number}")
    return path
