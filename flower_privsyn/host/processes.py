"""Processes of one run: who is alive, who descends from whom, and how all of them end together.

Flower's simulation starts processes that start processes: SuperLink, SuperExec, the simulation
itself, Ray's head and its workers, most of them in sessions of their own. None of them stops
because the command that began the run was killed. This module is run as a small *guard* process
(`python -m flower_privsyn.host.processes -- COMMAND ...`) which starts the command, adopts every
orphan among its descendants, and kills them all as soon as its standard input closes, which the
kernel does for it when the process that holds the other end dies, however it dies.

Standard library only: the guard has to start in milliseconds and must not fail on an import.
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
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flower_privsyn.environment import RUN_MARK, SUPERVISOR_PID, SUPERVISOR_STARTED

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.2
_KILL_SECONDS = 10.0


@dataclass(frozen=True)
class ProcessInfo:
    """One process as the kernel lists it.

    Attributes:
        pid: Process id.
        parent: Process id of its parent.
        started: When it started, in an opaque unit; equal strings mean the same process.
        state: One letter; `Z` and `X` are dead processes nobody has collected yet.
        name: Short name of the program.
    """

    pid: int
    parent: int
    started: str
    state: str
    name: str

    @property
    def alive(self) -> bool:
        """Whether the process can still run code."""
        return self.state not in {"Z", "X"}


def process_info(pid: int) -> ProcessInfo | None:
    """What is known about one process, or None when there is no such process."""
    if _has_proc():
        return _read_proc(pid)
    return _read_ps(["-p", str(pid)]).get(pid)


def list_processes() -> dict[int, ProcessInfo]:
    """Every process this user can see, by process id."""
    if not _has_proc():
        return _read_ps(["-A"])
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (a Path per process is not free)
        if name.isdigit():
            info = _read_proc(int(name))
            if info is not None:
                found[info.pid] = info
    return found


def is_alive(pid: int, started: str | None = None) -> bool:
    """Whether a process is alive, and still the one that was meant.

    Args:
        pid: Process id.
        started: `ProcessInfo.started` of the process meant; None accepts any process.

    Returns:
        False also for a process that is dead but not collected by its parent, which a signal
        sent to its id would still reach.
    """
    info = process_info(pid)
    if info is None or not info.alive:
        return False
    return not started or info.started == started


def descendants(root: int, processes: Mapping[int, ProcessInfo] | None = None) -> list[ProcessInfo]:
    """All living processes below `root`, without `root`, parents before children."""
    processes = list_processes() if processes is None else processes
    children: dict[int, list[ProcessInfo]] = {}
    for info in processes.values():
        children.setdefault(info.parent, []).append(info)
    found: list[ProcessInfo] = []
    queue = [root]
    while queue:
        for info in children.get(queue.pop(0), []):
            if info.pid != root:
                queue.append(info.pid)
                if info.alive:
                    found.append(info)
    return found


def marked_processes(mark: str) -> list[ProcessInfo]:
    """Living processes that carry `RUN_MARK=mark` in their environment, without this process.

    Only where the kernel shows environments (Linux); elsewhere the list is empty.
    """
    needle = f"{RUN_MARK}={mark}".encode()
    found = []
    for info in list_processes().values() if _has_proc() else ():
        if info.pid == os.getpid() or not info.alive:
            continue
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{info.pid}/environ").read_bytes().split(b"\0"):
                found.append(info)
    return found


def kill(targets: Iterable[ProcessInfo]) -> None:
    """Send SIGKILL to each target that is still the same process."""
    for info in targets:
        if is_alive(info.pid, info.started):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(info.pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _has_proc() -> bool:
    return sys.platform == "linux"


def _read_proc(pid: int) -> ProcessInfo | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name is in parentheses and may itself hold blanks and parentheses.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        started=fields[19],
        state=fields[0],
        name=head.partition("(")[2],
    )


def _read_ps(selection: Sequence[str]) -> dict[int, ProcessInfo]:
    listing = subprocess.run(
        ["ps", *selection, "-o", "pid=,ppid=,state=,lstart=,comm="],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    ).stdout
    found = {}
    for line in listing.splitlines():
        fields = line.split(None, 8)  # pid ppid state, five words of date, command
        if len(fields) == 9:
            found[int(fields[0])] = ProcessInfo(
                pid=int(fields[0]),
                parent=int(fields[1]),
                started=" ".join(fields[3:8]),
                state=fields[2][:1],
                name=Path(fields[8]).name,
            )
    return found


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
    own = process_info(os.getpid())
    environment = dict(os.environ)
    environment[SUPERVISOR_PID] = str(os.getpid())
    environment[SUPERVISOR_STARTED] = own.started if own else ""
    child = subprocess.Popen(  # this process has one thread, so preexec_fn is safe
        command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=die_with_parent
    )
    known: dict[int, ProcessInfo] = {}
    while wanted and child.poll() is None:
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0] and not os.read(0, 64):
            break
        _collect(known, child.pid)
    status = child.poll()
    _end_descendants(known)
    return 0 if status is None else status


def _collect(known: dict[int, ProcessInfo], child: int) -> None:
    """Take in dead orphans and, where orphans cannot be adopted, remember who descends from us."""
    if not _has_proc():
        known.update({info.pid: info for info in descendants(os.getpid())})
        return
    with contextlib.suppress(ChildProcessError):
        while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if dead.si_pid == child:
                return  # its status is left to whoever asks for it
            os.waitpid(dead.si_pid, 0)


def _end_descendants(known: Mapping[int, ProcessInfo]) -> None:
    # Once is not enough: a process may have started another between the listing and its death,
    # and the children of a dead one are adopted only then.
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        remaining = {info.pid: info for info in descendants(os.getpid())}
        remaining |= {pid: info for pid, info in known.items() if is_alive(pid, info.started)}
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
