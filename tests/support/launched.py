"""A run as `privsyn run` has started it, without Flower."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.files import write_json
from flower_privsyn.run import RunDirectory


def launched(
    run: RunDirectory, app: Path = Path("/no/app"), values: Mapping[str, Any] | None = None
) -> None:
    """Make a run one that this user started by `privsyn run`, with an app and its settings."""
    write_json(run.config_file, {**run.document, "app": "an-app"})
    run.owner.remember(launch={"app": str(app), "name": "an-app", "run-config": dict(values or {})})
