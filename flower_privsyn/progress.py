"""How far work has come, in lines for whoever follows it.

A line says that a stage has ended, and how long it took; one that it has begun, where it may take a
while without a word; and one now and then how far it is. Those of a run go to Flower's log, from
which `privsyn run` passes them on. No file of the run has them: how long a stage takes may depend
on private text.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from flower_privsyn import files

LINES: Final = "flwr.privsyn.progress"
"""The logger of the lines of a run."""

#: After so long without a line, one says how far the running stage is.
_SILENCE_SECONDS: Final = 15.0


@dataclass(eq=False)
class Stage:
    """One named stretch of work.

    Attributes:
        name: What is being done, a few words.
        total: Number of steps, or None when it is not known.
        owner: The progress that it is part of.
        done: Steps done so far.
        failed: Whether the stage was left by an exception.
        seconds: How long it took; None while it runs.
        begun: When, by the clock of `flower_privsyn.files`.
    """

    name: str
    total: int | None
    owner: Progress
    done: int = 0
    failed: bool = False
    seconds: float | None = None
    begun: float = field(default_factory=files.seconds)

    def update(self, steps: int = 1) -> None:
        """Count `steps` more steps as done; safe to call from several threads."""
        self.owner._advance(self, steps)

    def reach(self, done: int, total: int) -> None:
        """Say that `done` of `total` steps are done, as a callback for progress is told."""
        self.total = total
        self.update(done - self.done)

    def __str__(self) -> str:
        """One line: its name, how far it is and how long it took."""
        words = [self.name]
        if self.seconds is not None:
            words.append("stopped" if self.failed else "done")
            words += [f"({self.done:,})"] if self.done else []
            words.append(f"in {self.seconds:.1f} s")
        elif self.total:
            words.append(f"{self.done:,}/{self.total:,} ({100 * self.done // self.total} %)")
        elif self.done:
            words.append(f"{self.done:,}")
        return " ".join(words)


class Progress:
    """Stages of some work in this process.

    Args:
        say: Given every line; None for nobody.
        ended: Told of every stage that has ended; None for nobody.
    """

    def __init__(
        self,
        say: Callable[[str], object] | None = None,
        *,
        ended: Callable[[Stage], None] | None = None,
    ) -> None:
        self._say = say
        self._ended = ended
        # Re-entrant: a stage may be updated from a callback that runs inside another update.
        self._lock = threading.RLock()
        self._spoken = files.seconds()

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
        if not total:
            self.note(f"{name} ...")
        try:
            yield stage
        except BaseException:
            stage.failed = True
            raise
        finally:
            with self._lock:
                stage.seconds = files.seconds() - stage.begun
                self.note(str(stage))
                if self._ended is not None:
                    self._ended(stage)

    def note(self, sentence: str) -> None:
        """Pass a sentence on to whoever follows the work."""
        with self._lock:
            self._spoken = files.seconds()
            if self._say is not None:
                self._say(sentence)

    def _advance(self, stage: Stage, steps: int) -> None:
        with self._lock:
            stage.done += steps
            now = files.seconds()
            if now - self._spoken >= _SILENCE_SECONDS:
                self.note(f"{stage}, {now - stage.begun:.0f} s so far")
