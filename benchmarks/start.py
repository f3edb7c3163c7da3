"""The start of a process, as Flower starts one for every message to a deployed node."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import Other, Ratio, Work, compared


def measure() -> list[Ratio]:
    """Of a node that may be asked to train."""
    return compared(
        "start of a node",
        started("import flower_privsyn.client_apps.training"),
        Other("import torch (floor)", started("import torch"), 1.5),
        repeats=5,
    )


def started(code: str) -> Work:
    """A process of its own."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)
