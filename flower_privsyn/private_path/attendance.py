"""Rounds that too few answered: when they end a run, and what the run then says."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import numpy as np

from flower_privsyn.errors import FederationError
from flower_privsyn.privacy import RandomSource
from flower_privsyn.runs.directory import FOR_THE_OWNER

logger = logging.getLogger("flwr.privsyn")

#: Rounds in a row without enough answers after which a run ends.
LOST_IN_A_ROW = 2

#: Connected nodes of one user that are asked in every round of a secret cohort, drawn or not.
ROLL_CALL = 64


def roll_call(
    roster: Mapping[int, int], *, connected: Collection[int], random: RandomSource
) -> frozenset[int]:
    """Nodes that are asked in a round of a secret cohort whoever is drawn.

    Whether such a node replies says nothing about who was drawn. Every node of several users is
    one; of the nodes of one user, which else are asked when that user is drawn and not otherwise,
    `ROLL_CALL` of those that are connected, chosen anew in every round.

    Args:
        roster: users by node.
        connected: nodes that Flower reaches now.
        random: chooses among the nodes of one user.
    """
    several = [node for node, users in roster.items() if users > 1]
    single = sorted(node for node in connected if roster.get(node) == 1)
    if len(single) > ROLL_CALL:
        chosen = np.argsort(random.uint64(len(single)), kind="stable")[:ROLL_CALL]
        single = [single[index] for index in chosen]
    return frozenset([*several, *single])


class Attendance:
    """Counts rounds in a row that were lost because nobody, or too few, answered.

    A run stops after several of them, because those to come would probably be lost as well, and
    some of them charged.

    Formal guarantee:
        What is counted depends on head-counts and on which nodes replied, never on a sum. Where the
        cohort is secret, only nodes count that are asked whoever is drawn (`roll_call`), so that
        neither the end of a run nor its length depends on the draw; and nothing said here names a
        node, a round or a number. What is left: a node that is asked replies before `round-timeout`
        or does not, and a node whose users are drawn has more to compute than one whose users are
        not. Only where *every* node of two roll calls is late for that reason can the end of a run
        tell of it.

    Args:
        secret: whether the size of a cohort is secret.
    """

    def __init__(self, *, secret: bool) -> None:
        self._secret = secret
        self._lost: list[tuple[int, str]] = []
        self._missed = ""

    def answered(self) -> None:
        """Note a round that was released with answers in it."""
        self._lost.clear()

    def missed(self, number: int, why: str) -> None:
        """Say that a round is released without some of its nodes, once for every change of why.

        A node that is gone is gone for many rounds. Where the cohort is secret the server's owner
        alone is told.

        Args:
            number: of the round.
            why: as `AskedRound.told` has it; "" where all were there.
        """
        if why and why != self._missed:
            who = FOR_THE_OWNER if self._secret else None
            logger.warning("round %d is released without some nodes%s", number, why, extra=who)
        self._missed = why

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
        numbers = list(dict.fromkeys(number for number, _ in self._lost))
        which = f"rounds {' and '.join(map(str, numbers))} were lost"
        if self._secret:
            which = "two rounds in a row were lost"
        elif len(numbers) == 1:
            which = f"round {numbers[0]} was asked {len(self._lost)} times and lost"
        raise FederationError(f"{which}: {reasons}; {consequence}")
