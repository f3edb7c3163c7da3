"""The planted mistakes have their places in today's source, and tests of the normal suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "mutations" / "run.py"


def test_every_promise_has_a_mistake_and_every_mistake_its_place() -> None:
    """Whoever moves a function names its new file in the mutation that spoils it."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " mutations, 0 problems" in done.stdout
