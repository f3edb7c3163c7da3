"""The rounds that a start asks: what they share, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass

from flower_privsyn.messages.window import WindowedGrid
from flower_privsyn.privacy import CorrelatedNoise, PrivacyLedger
from flower_privsyn.private_path.aggregation import Aggregation
from flower_privsyn.private_path.asked import AskedRound
from flower_privsyn.private_path.method import Question
from flower_privsyn.private_path.preparation import Federation
from flower_privsyn.private_path.rounds import RoundEnds


@dataclass(kw_only=True)
class Asking:
    """What one start asks its rounds with, from the first of them to the last.

    A start makes its own: another process may have gone on with the run since an earlier one, and
    noise that takes up other noise than that of the rounds which are out is not what was accounted
    for.

    Attributes:
        grid: Flower's connection to the nodes.
        aggregation: what makes a sum of answers.
        ledger: open.
        federation: the nodes and their noise.
        rounds: brings each round to its end.
        behind: rounds that were over before the first of these.
        question: of the round to come; None where nothing more is asked.
        asked: the round under way, or the one that was last; None before the first.
        noise: the stream of the phase under way; None where its rounds draw their own.
    """

    grid: WindowedGrid
    aggregation: Aggregation
    ledger: PrivacyLedger
    federation: Federation
    rounds: RoundEnds
    behind: int
    question: Question | None
    asked: AskedRound | None = None
    noise: CorrelatedNoise | None = None

    @property
    def last_asked(self) -> int:
        """The last round that was asked; 0 before the first of these."""
        return self.asked.number if self.asked is not None else 0
