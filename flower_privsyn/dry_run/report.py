"""What was found: sentences, each of which is fine, worth knowing, or stops the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Literal

from flower_privsyn.errors import PrivsynError
from flower_privsyn.evaluation.result import STAMP

Level = Literal["fine", "warning", "stops"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence about the run.

    Attributes:
        topic: what it is about, in a word: "data", "models".
        level: "fine"; "warning": the run works, and this is worth knowing; "stops": it does not.
        sentence: in words.
    """

    topic: str
    level: Level
    sentence: str


@dataclass
class Report:
    """All that was found, in the order in which a run would meet it.

    Attributes:
        findings: the sentences.
        figures: numbers behind them, as plain JSON values.
        not_private: whether private text was counted for some of them.
        unknown: whether something that a run needs can be known from the app's own code alone.
    """

    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    not_private: bool = False
    unknown: bool = False

    def say(self, topic: str, sentence: str, *, level: Level = "fine") -> None:
        """Add a sentence, without a full stop."""
        finding = Finding(topic=topic, level=level, sentence=sentence.rstrip("."))
        if finding not in self.findings:
            self.findings.append(finding)

    def refusals(self, topic: str) -> _Refusals:
        """Take an error of ours in this block for something that stops the run."""
        return _Refusals(report=self, topic=topic)

    def of_level(self, level: Level) -> list[Finding]:
        """The findings of a level."""
        return [finding for finding in self.findings if finding.level == level]

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
            "findings": [asdict(finding) for finding in self.findings],
            "figures": self.figures,
        }


@dataclass(frozen=True, kw_only=True)
class _Refusals:
    """A block whose errors of ours are findings.

    Attributes:
        report: takes them.
        topic: of the findings.
    """

    report: Report
    topic: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, PrivsynError):
            return False
        self.report.say(self.topic, str(error), level="stops")
        return True
