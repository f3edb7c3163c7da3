"""How far a run has come, written where whoever follows it can read it.

The ServerApp runs in a process that has no terminal, so it cannot draw bars. It writes
`progress.json` in the run directory; the command that follows the run draws from that file.
Without such a command the same information goes to Flower's log, a line every few seconds.

The file counts steps and holds no time: how long a stage takes may depend on private text, and a
run directory says nothing of that.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flower_privsyn import files
from flower_privsyn.environment import RUN_DIRECTORY

_SHOWN_PER_SECOND = 5
_LOG_EVERY_SECONDS = 5.0


@dataclass(eq=False)
class Stage:
    """One named stretch of work.

    Attributes:
        name: What is being done, a few words.
        total: Number of steps, or None when it is not known.
        owner: The progress that it is part of.
        done: Steps done so far.
        finished: Whether the stage has ended.
        failed: Whether the stage was left by an exception.
        note: Whether this is no work at all but a sentence to pass on.
        seconds: How long it took; None while it runs, and never in the file.
        begun: When, by the clock of `flower_privsyn.files`; never in the file.
    """

    name: str
    total: int | None
    owner: Progress
    done: int = 0
    finished: bool = False
    failed: bool = False
    note: bool = False
    seconds: float | None = None
    begun: float = field(default_factory=files.seconds)

    def update(self, steps: int = 1) -> None:
        """Count `steps` more steps as done; safe to call from several threads."""
        self.owner._advance(self, steps)

    def reach(self, done: int, total: int) -> None:
        """Say that `done` of `total` steps are done, as a callback for progress is told."""
        self.total = total
        self.update(done - self.done)

    def end(self) -> None:
        """Say that the stage has ended."""
        self.seconds = files.seconds() - self.begun
        self.finished = True

    def to_dict(self) -> dict[str, Any]:
        """The stage as it stands in `progress.json`."""
        shown = ("name", "total", "done", "finished", "failed", "note")
        return {name: getattr(self, name) for name in shown}


class Progress:
    """Stages of some work in this process.

    Args:
        follow: Given the stages, oldest first, several times a second; None for nobody.
        ended: Told of every stage that has ended; None for nobody.
    """

    def __init__(
        self,
        follow: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
        *,
        ended: Callable[[Stage], None] | None = None,
    ) -> None:
        self._follow = follow
        self._ended = ended
        self._stages: list[Stage] = []
        # Re-entrant: a stage may be updated from a callback that runs inside another update.
        self._lock = threading.RLock()
        self._shown = 0.0

    @contextlib.contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """Open a stage; it is finished when the block is left.

        Args:
            name: What is being done, a few words.
            total: Number of steps, >= 0; None when it is not known.

        Yields:
            The stage; call its `update(steps)` as work is done.
        """
        stage = Stage(name, total, self)
        with self._lock:
            self._stages.append(stage)
            self._show()
        try:
            yield stage
        except BaseException:
            stage.failed = True
            raise
        finally:
            with self._lock:
                stage.end()
                self._show()
                self._log(stage)
                if self._ended is not None:
                    self._ended(stage)

    def note(self, sentence: str) -> None:
        """Pass a sentence, such as a warning, on to whoever follows the run."""
        stage = Stage(sentence, None, self, finished=True, note=True)
        with self._lock:
            self._stages.append(stage)
            self._show()

    def _advance(self, stage: Stage, steps: int) -> None:
        with self._lock:
            stage.done += steps
            if files.seconds() - self._shown >= 1 / _SHOWN_PER_SECOND:
                self._show()
            self._log(stage)

    def _show(self) -> None:
        self._shown = files.seconds()
        if self._follow is not None:
            self._follow([stage.to_dict() for stage in self._stages])

    def _log(self, stage: Stage) -> None:
        """Nobody reads a log of it."""


class RunProgress(Progress):
    """Stages of a run, kept in one file that is replaced as a whole.

    Args:
        path: The file to write, `<run-dir>/progress.json`.
        ended: Told of every stage that has ended; None for nobody.
    """

    def __init__(self, path: Path, *, ended: Callable[[Stage], None] | None = None) -> None:
        super().__init__(self._write, ended=ended)
        self._path = path
        self._logged = 0.0

    def _write(self, stages: Sequence[Mapping[str, Any]]) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        # Progress is for people: a full disk must stop the run where it matters, not here.
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps({"stages": stages}), encoding="utf-8")
            temporary.replace(self._path)

    def _log(self, stage: Stage) -> None:
        """A line every few seconds, where no command reads the file."""
        now = files.seconds()
        if RUN_DIRECTORY not in os.environ and (
            stage.finished or now - self._logged >= _LOG_EVERY_SECONDS
        ):
            self._logged = now
            # Flower's own logger, by name: it already has a handler, and no import is needed.
            logging.getLogger(_FLOWER).info("%s", describe(stage.to_dict(), stage.seconds))


def read_progress(path: Path) -> list[dict[str, Any]]:
    """The stages in a progress file, oldest first; empty when there is none yet."""
    try:
        stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
        return [stage for stage in stages if isinstance(stage, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def describe(stage: Mapping[str, Any], seconds: float | None = None) -> str:
    """One line about a stage: its name, how far it is and, where that is known, how long it took.

    Args:
        stage: As in `progress.json`.
        seconds: How long it took, by the clock of whoever followed it.
    """
    words = [str(stage["name"])]
    if stage.get("note"):
        return words[0]
    total, done = stage.get("total"), stage.get("done", 0)
    if stage.get("finished"):
        words.append("stopped" if stage.get("failed") else "done")
        if done:
            words.append(f"({done:,})")
        if seconds is not None:
            words.append(f"in {seconds:.1f} s")
    elif total:
        words.append(f"{done:,}/{total:,} ({100 * done // total} %)")
    elif done:
        words.append(f"{done:,}")
    return " ".join(words)


_OWNER_ALONE: Final = "privsyn_owner_alone"


FOR_THE_OWNER: Final[Mapping[str, bool]] = {_OWNER_ALONE: True}
"""`extra` of a warning that depends on who was drawn: it is in the server's log, and in no file of
the run."""


#: Loggers of this package, and of Flower.
_OURS: Final = "flower_privsyn"


_FLOWER: Final = "flwr"


class _Warnings(logging.Handler):
    """Passes warnings on to whoever follows the run, and to Flower's log those it would not see.

    Loggers below `flwr` are in Flower's log already. The others have Python's last resort, which
    writes to the same place, and which ends with the first handler that they get: this one.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, _OWNER_ALONE, False):
            self._progress.note(f"warning: {record.getMessage()}")
        flower = logging.getLogger(_FLOWER)
        ours = record.name.partition(".")[0] == _OURS
        if ours and flower.isEnabledFor(record.levelno):
            flower.handle(record)


@contextlib.contextmanager
def warnings_to(progress: Progress) -> Iterator[None]:
    """Pass on the warnings that this package gives inside the block.

    Args:
        progress: Of the run. What is for the owner alone is left out.
    """
    handler = _Warnings(progress)
    loggers = [logging.getLogger(name) for name in (_OURS, f"{_FLOWER}.privsyn")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
