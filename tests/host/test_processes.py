"""The guard leaves no descendant alive, whichever process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flower_privsyn.environment import RUN_MARK
from flower_privsyn.host import processes

# A command whose child detaches into a session of its own, as Flower's processes do.
_DETACHING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep({seconds})
"""


def _start(tmp_path: Path, seconds: float = 300) -> tuple[subprocess.Popen[str], int]:
    folder = tmp_path / "removed-at-the-end"
    folder.mkdir()
    guard = subprocess.Popen(
        [
            *(sys.executable, "-m", "flower_privsyn.host.processes", "--remove", str(folder), "--"),
            *(sys.executable, "-c", _DETACHING.format(seconds=seconds)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert guard.stdout is not None
    return guard, int(guard.stdout.readline())


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while processes.is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still alive"
        time.sleep(0.02)


def test_everything_ends_when_the_input_closes(tmp_path: Path) -> None:
    guard, grandchild = _start(tmp_path)
    assert processes.is_alive(grandchild)
    below = processes.descendants(guard.pid)
    assert grandchild in {info.pid for info in below}
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(timeout=20) == 0
    assert not any(processes.is_running(info) for info in below)
    assert not (tmp_path / "removed-at-the-end").exists()
    # Collected too: nothing waits for a process 1 that may never look.
    assert not psutil.pid_exists(grandchild)


def test_an_orphan_is_ended_with_its_command(tmp_path: Path) -> None:
    guard, grandchild = _start(tmp_path, seconds=0)
    assert guard.wait(timeout=20) == 0
    assert not processes.is_alive(grandchild)


def test_a_signal_ends_the_guard_in_order(tmp_path: Path) -> None:
    guard, grandchild = _start(tmp_path)
    guard.send_signal(signal.SIGTERM)
    assert guard.wait(timeout=20) == 0
    assert not processes.is_alive(grandchild)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for a parent-death signal")
def test_the_command_dies_with_a_killed_guard(tmp_path: Path) -> None:
    guard, grandchild = _start(tmp_path)
    (command,) = (info for info in processes.descendants(guard.pid) if info.ppid() == guard.pid)
    guard.kill()
    guard.wait()
    _wait_until_gone(command.pid)
    os.kill(grandchild, signal.SIGKILL)


def test_a_reused_process_id_is_another_process() -> None:
    own = processes.started_at(os.getpid())
    assert processes.is_alive(os.getpid(), own)
    assert not processes.is_alive(os.getpid(), own + "0")
    assert processes.started_at(2**22 + 1) == ""
    assert not processes.is_alive(2**22 + 1)


@pytest.mark.skipif(sys.platform != "linux", reason="environments are visible on Linux only")
def test_processes_are_found_by_their_mark() -> None:
    environment = {**os.environ, RUN_MARK: "a-mark-of-this-test"}
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(300)"],
        env=environment,
        stdout=subprocess.PIPE,
    )
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    found = processes.marked_processes("a-mark-of-this-test")
    assert [info.pid for info in found] == [sleeper.pid]
    processes.kill(found)
    assert sleeper.wait(timeout=20) == -signal.SIGKILL
