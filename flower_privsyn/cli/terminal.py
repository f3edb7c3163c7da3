"""Showing the stages of a run: bars in a terminal, lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flower_privsyn import files
from flower_privsyn.cli.output import without_controls
from flower_privsyn.progress import describe

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Stages = Sequence[Mapping[str, Any]]

#: After so long without a line, one says how far the running stage is.
_SILENCE_SECONDS = 15.0


class Follower:
    """Says in a line that a stage has ended.

    Without bars one line says now and then how far the running stage is, and one that a stage has
    begun which may take a while without a word. The progress of a run says nothing about time: how
    long a stage took is from when it was first seen to when it was seen to have ended.

    Args:
        bars: that show what is running, started and stopped by whoever made them; None for lines.
    """

    def __init__(self, bars: Progress | None = None) -> None:
        self._bars = bars
        self._tasks: dict[int, TaskID] = {}
        self._begun: dict[int, float] = {}
        self._ended: set[int] = set()
        self._spoken = files.seconds()

    def __call__(self, stages: Stages) -> None:
        """Show what is new; the stages of earlier calls come first, in the same order."""
        for number, stage in enumerate(stages):
            if number in self._ended:
                continue
            is_new, now = number not in self._begun, files.seconds()
            seconds = now - self._begun.setdefault(number, now)
            if stage.get("finished"):
                self._ended.add(number)
                if self._bars is not None and number in self._tasks:
                    self._bars.remove_task(self._tasks[number])
                self._say(describe(stage, seconds))
            elif self._bars is not None:
                self._draw(self._bars, number, stage)
            elif is_new and not stage.get("total"):
                self._say(f"{stage['name']} ...")
            elif now - self._spoken >= _SILENCE_SECONDS:
                self._say(f"{describe(stage)}, {seconds:.0f} s so far")

    def _draw(self, bars: Progress, number: int, stage: Mapping[str, Any]) -> None:
        if number not in self._tasks:
            self._tasks[number] = bars.add_task(without_controls(str(stage["name"])))
        done, total = stage.get("done", 0), stage.get("total")
        bars.update(self._tasks[number], completed=done, total=total)

    def _say(self, words: str) -> None:
        if self._bars is not None:
            self._bars.console.print(without_controls(words), markup=False, highlight=False)
        else:
            sys.stderr.write(words + "\n")
            sys.stderr.flush()
        self._spoken = files.seconds()


@contextlib.contextmanager
def follower() -> Iterator[Callable[[Stages], None]]:
    """Bars where standard error is a terminal, lines where it is a file or a pipe."""
    if not sys.stderr.isatty():
        yield Follower()
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        # Bars are drawn with what is kept from everything else that is printed.
        console=Console(file=getattr(sys.stderr, "stream", sys.stderr)),
        transient=True,
        refresh_per_second=4,
    ) as bars:
        yield Follower(bars)
