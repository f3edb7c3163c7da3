"""One process at a time works on a run, and none outlives its supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flower_privsyn import locks
from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.locks import is_alive, started_at
from flower_privsyn.run import RunDirectory

_HOLD = """
import sys, time
from flower_privsyn.run import RunDirectory
run = RunDirectory.open(sys.argv[1])
run.lock()
run.mark_running()
print("locked", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(tmp_path, config={})
    run.unlock()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert run.running_process() == other.pid
        monkeypatch.setattr(locks, "_PATIENCE_SECONDS", 0.5)
        with pytest.raises(RunDirectoryError, match=f"is in use by process {other.pid}; wait"):
            run.lock()
        monkeypatch.undo()
        os.kill(other.pid, signal.SIGKILL)
        run.lock()
        assert run.running_process() == os.getpid()
        run.unlock()
    assert run.status == "running"


_DIE_WITH_A_CHILD = """
import os, sys, time
from flower_privsyn.run import RunDirectory
run = RunDirectory.open(sys.argv[1])
run.lock()
if os.fork() == 0:  # as a child between fork and exec, or a thread that is still ending
    time.sleep(1.5)
    os._exit(0)
os._exit(0)
"""


def test_a_lock_that_outlives_its_dead_holder_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, config={})
    run.unlock()
    subprocess.run([sys.executable, "-c", _DIE_WITH_A_CHILD, str(tmp_path)], check=True)
    run.lock()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    run.unlock()


def test_a_reused_process_id_is_another_process() -> None:
    own = started_at(os.getpid())
    assert is_alive(os.getpid(), own)
    assert not is_alive(os.getpid(), own + "0")
    assert started_at(2**22 + 1) == ""
    assert not is_alive(2**22 + 1, "")
