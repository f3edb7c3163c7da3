"""Processes of one run: who is alive, who descends from whom, and how all of them end together.

Flower's simulation starts processes that start processes: SuperLink, SuperExec, the simulation
itself, Ray's head and its workers, most of them in sessions of their own. None of them stops
because the command that began the run was killed. This module is run as a small *guard* process
(`python -m flower_privsyn.host.processes -- COMMAND ...`) which starts the command, adopts every
orphan among its descendants, and kills them all as soon as its standard input closes, which the
kernel does for it when the process that holds the other end dies, however it dies.

Besides the standard library it loads psutil alone: the guard has to start in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from flower_privsyn.environment import RUN_MARK, SUPERVISOR_PID, SUPERVISOR_STARTED

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.2
_KILL_SECONDS = 10.0
_LINUX = sys.platform == "linux"
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def started_at(pid: int) -> str:
    """When a process started, in an opaque unit; "" when there is no such process.

    Equal texts for one id mean the same process, also where another process reads them.
    """
    try:
        if not _LINUX:
            return str(psutil.Process(pid).create_time())
        # In ticks since the machine started. psutil adds the time of day to it, which moves when
        # the clock is set: a supervisor that lives would then be taken for another process.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (OSError, psutil.Error):
        return ""
    # The name is in parentheses and may itself hold blanks and parentheses.
    return stat.rpartition(")")[2].split()[19]


def is_alive(pid: int, since: str = "") -> bool:
    """Whether a process is alive, and still the one that was meant.

    Args:
        pid: Process id.
        since: `started_at` of the process meant; "" accepts any process.

    Returns:
        False also for a process that is dead but not collected by its parent, which a signal
        sent to its id would still reach.
    """
    try:
        alive = psutil.Process(pid).status() not in _DEAD
    except psutil.Error:
        return False
    return alive and since in ("", started_at(pid))


def is_running(process: psutil.Process) -> bool:
    """Whether this very process can still run code."""
    try:
        return bool(process.is_running() and process.status() not in _DEAD)
    except psutil.Error:
        return False


def name_of(process: psutil.Process) -> str:
    """Short name of the program; "" when the process is gone."""
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def descendants(root: int) -> list[psutil.Process]:
    """All living processes below `root`, without `root`, parents before children."""
    try:
        below = psutil.Process(root).children(recursive=True)
    except psutil.Error:
        return []
    return [process for process in below if is_running(process)]


def marked_processes(mark: str) -> list[psutil.Process]:
    """Living processes that carry `RUN_MARK=mark` in their environment, without this process.

    Only those whose environment the kernel shows to this user.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            marked = process.pid != os.getpid() and process.environ().get(RUN_MARK) == mark
            if marked and is_running(process):
                found.append(process)
    return found


def kill(targets: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to each target that is still the same process."""
    for process in targets:
        with contextlib.suppress(psutil.Error):
            process.kill()


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def guard(command: Sequence[str]) -> int:
    """Run a command, and leave none of its descendants alive.

    Ends when the command ends, when standard input closes or when SIGTERM or SIGINT arrives;
    in every case all descendants are killed first.

    Args:
        command: The program and its arguments.

    Returns:
        The command's exit status, negative for a signal; 0 when it was ended from outside.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wanted = True

    def stop(_signal: int, _frame: object) -> None:
        nonlocal wanted
        wanted = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    environment = dict(os.environ)
    environment[SUPERVISOR_PID] = str(os.getpid())
    environment[SUPERVISOR_STARTED] = started_at(os.getpid())
    child = subprocess.Popen(  # this process has one thread, so preexec_fn is safe
        command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=die_with_parent
    )
    known: dict[int, psutil.Process] = {}
    while wanted and child.poll() is None:
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0] and not os.read(0, 64):
            break
        _collect(known, child.pid)
    status = child.poll()
    _end_descendants(known)
    return 0 if status is None else status


def _collect(known: dict[int, psutil.Process], child: int) -> None:
    """Take in dead orphans and, where orphans cannot be adopted, remember who descends from us."""
    if not _LINUX:
        known.update({process.pid: process for process in descendants(os.getpid())})
        return
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid == child:
                return  # its status is left to whoever asks for it
            os.waitpid(dead.si_pid, 0)


def _end_descendants(known: Mapping[int, psutil.Process]) -> None:
    # Once is not enough: a process may have started another between the listing and its death,
    # and the children of a dead one are adopted only then.
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        remaining = {process.pid: process for process in descendants(os.getpid())}
        remaining |= {pid: process for pid, process in known.items() if is_running(process)}
        kill(remaining.values())
        # Collected here and not left to process 1, which in a container often collects nothing.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not remaining:
            return
        time.sleep(0.02)


def _main(arguments: Sequence[str]) -> NoReturn:
    options, command = [], list(arguments)
    while command and command[0] != "--":
        options.append(command.pop(0))
    if len(command) < 2 or len(options) not in {0, 2} or options[:1] not in ([], ["--remove"]):
        sys.stderr.write(
            "usage: python -m flower_privsyn.host.processes [--remove FOLDER] -- COMMAND ...\n"
        )
        sys.exit(2)
    status = guard(command[1:])
    if options:
        shutil.rmtree(options[1], ignore_errors=True)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    _main(sys.argv[1:])
