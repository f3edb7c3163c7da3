"""What was found: sentences, each of which is fine, worth knowing, or stops the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from flower_privsyn.errors import PrivsynError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.run.method import Diagnostic, Level


@dataclass
class Report:
    """All that was found, in the order in which a run would meet it.

    Attributes:
        diagnostics: the sentences.
        figures: numbers behind them, as plain JSON values.
        not_private: whether private text was counted for some of them.
        unknown: whether something that a run needs can be known from the app's own code alone.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    not_private: bool = False
    unknown: bool = False

    def say(self, topic: str, sentence: str, *, level: Level = "fine") -> None:
        """Add a sentence, without a full stop."""
        diagnostic = Diagnostic(topic=topic, level=level, sentence=sentence.rstrip("."))
        if diagnostic not in self.diagnostics:
            self.diagnostics.append(diagnostic)

    @contextlib.contextmanager
    def refusals(self, topic: str) -> Iterator[None]:
        """Take an error of ours in this block for something that stops the run."""
        try:
            yield
        except PrivsynError as error:
            self.say(topic, str(error), level="stops")

    def of_level(self, level: Level) -> list[Diagnostic]:
        """The diagnostics of a level."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.level == level]

    @property
    def ready(self) -> bool:
        """Whether nothing stops the run."""
        return not self.of_level("stops")

    @property
    def verdict(self) -> str:
        """The end of it all, in a line."""
        stops, warnings = (len(self.of_level(level)) for level in ("stops", "warning"))
        if stops:
            return f"Not ready: {stops} thing{'s stop' if stops > 1 else ' stops'} the run"
        if self.unknown:
            return "Nothing that is known here stops it, and not all of it is known"
        if warnings:
            return f"It will run, with {warnings} warning{'s' if warnings > 1 else ''}"
        return "Ready"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {
            **({"stamp": STAMP} if self.not_private else {}),
            "ready": self.ready,
            "verdict": self.verdict,
            "diagnostics": [asdict(diagnostic) for diagnostic in self.diagnostics],
            "figures": self.figures,
        }
