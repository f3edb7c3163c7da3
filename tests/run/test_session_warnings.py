"""Warnings given while a run is worked on are in Flower's log, once, whoever logs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# A process of its own: the log of a test is set up by pytest.
_SERVER_APP = """
import logging, sys
from pathlib import Path
import flwr.common
from flower_privsyn.run import RunDirectory

run = RunDirectory.create(Path(sys.argv[1]), config={})
with run.session():
    logging.getLogger("flower_privsyn.models").warning("terms of %s", "Gemma")
    logging.getLogger("flower_privsyn.models").info("not for everyone")
    logging.getLogger("flwr.privsyn").warning("delta is large")
"""


def test_warnings_of_every_logger_are_in_flowers_log_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVER_APP, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout + done.stderr
    assert said.count("terms of Gemma") == 1
    assert "not for everyone" not in said
    assert said.count("delta is large") == 1
