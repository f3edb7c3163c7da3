"""The owner's folder beside a run directory: what holds times, and is for its owner alone.

```
<run-dir>.owner/own.json     what the run was given: its app, all of its settings
                times.jsonl  how long things took, under a stamp
                flower.log   what Flower and the app printed
                lock         which command drives the run
                stop         the owner wants the run to end before its next round
```

How long a round took may say how much somebody wrote, and no noise was added to that. So no time
later than the run's creation stands in a run directory, which may be shared under its epsilon; the
times are here, in a folder of mode 0700, and must not be shared.

A run directory may be somebody else's, and so may a folder that came with it. What names code to
run, an address, a key or a file of this machine is therefore taken from `own.json` alone, and only
where that is sealed by the key of this user, which lies in their state folder.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn import clock
from flower_privsyn.files import (
    own_folder,
    plain,
    read_json,
    read_json_lines,
    state_folder,
    write_json,
)

TIMES_STAMP = "not private: times depend on private text, outside the privacy budget"
"""What the first line of `times.jsonl` says."""

#: Under which `own.json` has its seal.
_SEAL: Final = "seal"

_KEY_BYTES: Final = 32


class OwnerFolder:
    """The owner's folder of one run.

    Args:
        run_path: the run directory; the folder is beside it, under its name and `.owner`.

    Attributes:
        path: the folder, which may not exist.
        own_file: what the run was given.
        times_file: how long things took.
        log_file: what Flower and the app printed.
        stop_file: there while the owner wants the run to end before its next round.
    """

    def __init__(self, run_path: Path) -> None:
        self.path = run_path.with_name(f"{run_path.name}.owner")
        self.own_file = self.path / "own.json"
        self.times_file = self.path / "times.jsonl"
        self.log_file = self.path / "flower.log"
        self.stop_file = self.path / "stop"

    def ask_to_stop(self) -> None:
        """Ask the process that works on the run to end it before its next round.

        Raises:
            OSError: the folder cannot be written.
        """
        self.make()
        self.stop_file.touch(mode=0o600)

    def forget_stop(self) -> None:
        """Forget that the run was to end: it was asked of an earlier start."""
        with contextlib.suppress(OSError):
            self.stop_file.unlink(missing_ok=True)

    @property
    def stated(self) -> dict[str, Any]:
        """What `own.json` says, whoever wrote it, to compare with; empty where there is none."""
        return read_json(self.own_file)

    @property
    def own(self) -> dict[str, Any]:
        """The same where this user wrote it, to act on; else empty.

        `launch` is what `privsyn run` was asked to start: `app`, `name`, `working-directory` and
        `run-config`. `settings` are all that the run was given last, by hyphenated key.
        """
        stated = self.stated
        seal = stated.pop(_SEAL, None)
        return stated if seal is not None and seal == _seal_of(stated) else {}

    def remember(self, **parts: Mapping[str, Any]) -> None:
        """Keep what this user gives the run in `own.json`; parts that are not named stay.

        Raises:
            OSError: The folder cannot be written.
        """
        kept = plain({**self.own, **parts})
        self.make()
        write_json(self.own_file, {**kept, _SEAL: _seal_of(kept)}, for_the_owner=True)

    def make(self) -> None:
        """Make the folder, for its owner alone.

        Raises:
            OSError: It cannot be made, or it or something in it is a link to elsewhere.
        """
        for place in (self.path, *self.path.glob("*")):
            if place.is_symlink():
                raise OSError(errno.ELOOP, f"{place} is a link, which no run makes there")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def begin(self, **parts: Mapping[str, Any]) -> None:
        """Forget an earlier run of this name: its times, and what it was given.

        Where the folder cannot be written, the run goes on without it.

        Args:
            parts: as of `remember`.
        """
        with contextlib.suppress(OSError):
            self.times_file.unlink(missing_ok=True)
            self.remember(**parts)

    def record(self, event: str, **figures: Any) -> None:
        """Add a line to `times.jsonl`, with the moment it is written.

        Times are for people: where they cannot be written, the run goes on without them.

        Args:
            event: what happened, such as "round".
            figures: durations in seconds and what they belong to, as plain JSON values.
        """
        line = {"event": event, "time": clock.now(), **figures}
        with contextlib.suppress(OSError):
            self.make()
            write_times(self.times_file, [line])

    def times(self) -> list[dict[str, Any]]:
        """The lines of `times.jsonl` after the stamp; none where there is no such file."""
        lines = list(read_json_lines(self.times_file))
        return [line for line in lines if "stamp" not in line]


def write_times(path: Path, lines: list[dict[str, Any]]) -> None:
    """Add lines to a file of times, after the stamp where the file is new.

    Raises:
        OSError: The file cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "ab") as file:
        if file.tell() == 0:
            lines = [{"stamp": TIMES_STAMP}, *lines]
        file.write("".join(json.dumps(plain(line)) + "\n" for line in lines).encode())


def _seal_of(kept: Mapping[str, Any]) -> str | None:
    """The seal of what is kept, by this user's key; None where they can have none.

    The key, 32 random bytes, is made on first use.
    """
    try:
        import fcntl

        own_folder(state_folder())
        descriptor = os.open(state_folder() / "owner-key", os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            key = file.read()
            if len(key) != _KEY_BYTES:  # new, or of a process that was killed just here
                key = secrets.token_bytes(_KEY_BYTES)
                file.seek(0)
                file.write(key)
    except (OSError, RuntimeError, ImportError):  # no home, none that can be written, no locks
        return None
    return hmac.new(key, json.dumps(kept, sort_keys=True).encode(), "sha256").hexdigest()
