"""One process at a time works on a run, and one command drives it."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import IO

import psutil

from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import os_errors_as, try_file

_LOCK_POLL_SECONDS = 0.2

#: For how long another process is waited for. The kernel releases a lock when the last thread or
#: half-made child of its holder is gone, moments after that one is seen to be dead.
_PATIENCE_SECONDS = 10.0


def started_at(pid: int) -> str:
    """When a process started, as text; "" when there is no such process."""
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


def is_alive(pid: int, since: str) -> bool:
    """Whether a process is alive, and still the one that was meant.

    Args:
        pid: Process id.
        since: `started_at` of the process meant.

    Returns:
        False also for a process that is dead but not collected by its parent, which a signal
        sent to its id would still reach.
    """
    try:
        alive = psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False
    return alive and since == started_at(pid)


def lock_file(path: Path, *, what: str) -> IO[str]:
    """Lock a file for this process; another one has ten seconds to let go.

    Args:
        path: The lock file; created where it does not exist.
        what: What is being locked, for the error message.

    Returns:
        The open file. Closing it, or the end of the process, releases the lock.

    Raises:
        RunDirectoryError: Another process holds the lock, or the folder or the lock file cannot be
            written.
    """
    # Who locks wants to write beside the lock, and the lock file may take what its folder refuses.
    with os_errors_as(RunDirectoryError, f"{what[:1].upper()}{what[1:]} cannot be written"):
        try_file(path.parent)
    begun = time.monotonic()
    with os_errors_as(RunDirectoryError, f"The lock file {path} cannot be locked"):
        # Also on a file system that knows no locks.
        file = path.open("a+", encoding="utf-8")
        # flock, not lockf: a POSIX record lock is lost when any descriptor of the file is closed in
        # this process, which reading the holder would do.
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= begun + _PATIENCE_SECONDS:
                    file.close()
                    holder = read_holder(path)
                    who = f"process {holder[0]}" if holder else "another process"
                    raise RunDirectoryError(
                        f"{what[:1].upper()}{what[1:]} is in use by {who}; "
                        "wait for it to end or stop it first."
                    ) from None
            time.sleep(_LOCK_POLL_SECONDS)
        removed = os.fstat(file.fileno()).st_nlink == 0
    if removed:  # by its holder as it ended; another process may lock a new one
        file.close()
        return lock_file(path, what=what)
    file.truncate(0)
    file.write(json.dumps({"pid": os.getpid(), "started": started_at(os.getpid())}) + "\n")
    file.flush()
    return file


def read_holder(path: Path) -> tuple[int, str] | None:
    """Id and start of the process that a lock file names; None where it names none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return int(record["pid"]), str(record["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
