"""Showing the stages of a run: bars in a terminal, lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from flower_privsyn import files
from flower_privsyn.plain_stream import without_controls
from flower_privsyn.progress import describe

if TYPE_CHECKING:
    from rich.progress import TaskID

Stages = Sequence[Mapping[str, Any]]

#: After so long without a line, one says how far the running stage is.
_SILENCE_SECONDS = 15.0


class _Watch:
    """How long stages take, by when they are first seen and when they are seen to have ended.

    The progress of a run says nothing about time, so whoever looks on uses a clock of their own.
    """

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def look(self, stages: Stages) -> None:
        """Note which stages are new."""
        for number, stage in enumerate(stages):
            if number not in self._seen and not stage.get("finished"):
                self._seen[number] = files.seconds()

    def seconds(self, number: int) -> float | None:
        """Since a stage was first seen to run; None if it never was."""
        begun = self._seen.get(number)
        return None if begun is None else files.seconds() - begun


class Lines:
    """One line per stage when it ends, and one now and then while nothing else is said.

    A stage without a known number of steps, which may take a while without a word, has one when it
    begins.

    Args:
        stream: Where to write; standard error by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._said: set[tuple[int, str]] = set()
        self._spoken = files.seconds()
        self._watch = _Watch()

    def __call__(self, stages: Stages) -> None:
        """Show what is new; the stages of earlier calls come first, in the same order."""
        self._watch.look(stages)
        running = None
        for number, stage in enumerate(stages):
            seconds = self._watch.seconds(number)
            if stage.get("finished"):
                self._once(number, "end", describe(stage, seconds))
            else:
                running = number, stage
                if not stage.get("total"):
                    self._once(number, "begin", f"{stage['name']} ...")
        if running is not None and files.seconds() - self._spoken >= _SILENCE_SECONDS:
            number, stage = running
            seconds = self._watch.seconds(number) or 0.0
            self._say(f"{describe(stage)}, {seconds:.0f} s so far")

    def _once(self, number: int, event: str, words: str) -> None:
        if (number, event) not in self._said:
            self._said.add((number, event))
            self._say(words)

    def _say(self, words: str) -> None:
        self._stream.write(words + "\n")
        self._stream.flush()
        self._spoken = files.seconds()


class Bars:
    """A bar for every stage that is running, and a line for every one that has ended.

    Attributes:
        shown: The bars, which somebody has to start and stop.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.shown = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            # Bars are drawn with what is kept from everything else that is printed.
            console=Console(file=getattr(sys.stderr, "stream", sys.stderr)),
            transient=True,
            refresh_per_second=4,
        )
        self._tasks: dict[int, TaskID] = {}
        self._watch = _Watch()

    def __call__(self, stages: Stages) -> None:
        """Show what is new; the stages of earlier calls come first, in the same order."""
        stages = [{**stage, "name": without_controls(str(stage["name"]))} for stage in stages]
        self._watch.look(stages)
        for number, stage in enumerate(stages):
            if number not in self._tasks:
                self._tasks[number] = self.shown.add_task(stage["name"], total=stage.get("total"))
            task = self._tasks[number]
            if not stage.get("finished"):
                self.shown.update(task, completed=stage.get("done", 0), total=stage.get("total"))
            elif task in self.shown.task_ids:
                self.shown.remove_task(task)
                self.shown.console.print(
                    describe(stage, self._watch.seconds(number)), markup=False, highlight=False
                )


@contextlib.contextmanager
def follower() -> Iterator[Callable[[Stages], None]]:
    """Bars where standard error is a terminal, lines where it is a file or a pipe."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    bars = Bars()
    with bars.shown:
        yield bars
