"""Rounds that too few answered: when they end a run, and what the run then says."""

from __future__ import annotations

import math

from flower_privsyn.errors import FederationError
from flower_privsyn.privacy import CyclicSampling, Sampling

#: Rounds in a row without enough answers after which a run ends.
LOST_IN_A_ROW = 2


def default_least_users(sampling: Sampling) -> int:
    """Users whose answers a round needs where nothing was set: half of those expected, at least 1.

    Groups that take turns are dealt by a hash, so their sizes vary: four standard deviations
    below the average are still a whole group.

    Args:
        sampling: of a public cohort, with its population.
    """
    expected = sampling.expected_users
    least = expected / 2
    if isinstance(sampling, CyclicSampling):
        least = min(least, expected - 4 * math.sqrt(expected))
    return max(1, math.ceil(least))


class Attendance:
    """Counts rounds in a row that were lost because nobody, or too few, answered.

    One lost round is an accident; more of them mean that the nodes are gone, and that the rounds
    to come would be lost, or paid for, just the same.

    *Formal guarantee.* What is counted depends on head-counts and on which nodes replied, never on
    a sum. Where the cohort is secret nothing said here names a node, a round or a number: that
    those who were asked are silent is all that is told, and they gave no answer that a release
    could hold.

    Args:
        secret: whether the size of a cohort is secret.
    """

    def __init__(self, *, secret: bool) -> None:
        self._secret = secret
        self._lost: list[tuple[int, str]] = []

    def answered(self) -> None:
        """Note a round that was released with answers in it."""
        self._lost.clear()

    def lost(self, number: int, reason: str) -> None:
        """Note a round that was lost.

        Args:
            number: of the round.
            reason: why, in words that the run directory may hold.
        """
        self._lost.append((number, reason))

    def check(self, *, consequence: str) -> None:
        """End the run when enough rounds in a row were lost.

        Args:
            consequence: what they cost and how to go on.

        Raises:
            FederationError: the sentence that says so.
        """
        if len(self._lost) < LOST_IN_A_ROW:
            return
        reasons = "; ".join(dict.fromkeys(reason for _, reason in self._lost))
        rounds = " and ".join(str(number) for number, _ in self._lost)
        which = "two rounds in a row" if self._secret else f"rounds {rounds}"
        raise FederationError(f"{which} were lost: {reasons}; {consequence}")
