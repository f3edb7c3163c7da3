"""The owner's folder beside a run directory: what holds times, and is for its owner alone.

```
<run-dir>.owner/times.jsonl  how long things took, under a stamp
                flower.log   what Flower and the app printed, every line with its time
                stop         the owner wants the run to end before its next round
```

How long a round took may say how much somebody wrote, and no noise was added to that. So no time
later than the run's creation stands in a run directory, which may be shared under its epsilon; the
times are here, in a folder of mode 0700, and must not be shared.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from flower_privsyn import clock
from flower_privsyn.files import plain, read_json_lines

TIMES_STAMP = "not private: times depend on private text, outside the privacy budget"
"""What the first line of `times.jsonl` says."""


class OwnerFolder:
    """The owner's folder of one run.

    Args:
        run_path: the run directory; the folder is beside it, under its name and `.owner`.

    Attributes:
        path: the folder, which may not exist.
    """

    def __init__(self, run_path: Path) -> None:
        self.path = run_path.with_name(f"{run_path.name}.owner")

    @property
    def times_file(self) -> Path:
        """How long things took."""
        return self.path / "times.jsonl"

    @property
    def log_file(self) -> Path:
        """What Flower and the app printed."""
        return self.path / "flower.log"

    @property
    def stop_file(self) -> Path:
        """There while the owner wants the run to end before its next round."""
        return self.path / "stop"

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

    def make(self) -> None:
        """Make the folder, for its owner alone.

        Raises:
            OSError: It cannot be made.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)

    def begin_times(self) -> None:
        """Begin `times.jsonl` anew: those of an earlier run of this name are not this run's."""
        with contextlib.suppress(OSError):
            self.times_file.unlink(missing_ok=True)

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
