"""Showing the stages of what a command does, in lines on the standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flower_privsyn import files
from flower_privsyn.progress import describe

#: After so long without a line, one says how far the running stage is.
_SILENCE_SECONDS = 15.0


class Follower:
    """Says in a line that a stage has ended, and now and then how far the running one is.

    Also that one has begun which may take a while without a word. The progress of a run says
    nothing about time: how long a stage took is from when it was first seen to when it was seen to
    have ended.
    """

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}
        self._ended: set[int] = set()
        self._spoken = files.seconds()

    def __call__(self, stages: Sequence[Mapping[str, Any]]) -> None:
        """Show what is new; the stages of earlier calls come first, in the same order."""
        for number, stage in enumerate(stages):
            if number in self._ended:
                continue
            is_new, now = number not in self._begun, files.seconds()
            seconds = now - self._begun.setdefault(number, now)
            if stage.get("finished"):
                self._ended.add(number)
                self._say(describe(stage, seconds))
            elif is_new and not stage.get("total"):
                self._say(f"{stage['name']} ...")
            elif now - self._spoken >= _SILENCE_SECONDS:
                self._say(f"{describe(stage)}, {seconds:.0f} s so far")

    def _say(self, words: str) -> None:
        sys.stderr.write(words + "\n")
        sys.stderr.flush()
        self._spoken = files.seconds()
