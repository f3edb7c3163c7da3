"""A round between its question and its release, and what may not be asked."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

from flower_privsyn.errors import ConfigError
from flower_privsyn.messages import wire
from flower_privsyn.messages.parameters import refuse_uncarried
from flower_privsyn.privacy import GaussianMechanism, Phase, Sampling
from flower_privsyn.privacy.grid import LARGEST_SUM
from flower_privsyn.private_path.aggregation import BESIDE, words_of
from flower_privsyn.private_path.meeting import Roster
from flower_privsyn.private_path.method import Question, RecordSource
from flower_privsyn.private_path.release import ReleasedSum
from flower_privsyn.queries import Query
from flower_privsyn.queries.trial import try_query
from flower_privsyn.runs.directory import FOR_THE_OWNER

logger = logging.getLogger("flwr.privsyn")


@dataclass(frozen=True, kw_only=True)
class AskedRound:
    """A round that was begun, until its release.

    Attributes:
        number: 1-based, over the whole run.
        question: with the broadcast as it travelled.
        mechanism: the noise on its sum.
        sampling: who takes part.
        most_users: by node that is asked, the most users that may be in its answer.
        roster_users: by node that is asked, the users that it announced.
        always_asked: nodes that are asked whoever is drawn.
        begun: when, for the owner.
        traffic: what one exchange carries.
        secure: whether answers are aggregated securely.
    """

    number: int
    question: Question
    mechanism: GaussianMechanism
    sampling: Sampling
    most_users: dict[int, int]
    roster_users: dict[int, int]
    always_asked: frozenset[int]
    begun: float
    traffic: wire.Traffic
    secure: bool = False

    def outcome(self, released: ReleasedSum | None, counts: Counter[str]) -> dict[str, Any]:
        """What `metrics.jsonl` says of how the round ended: nothing that the release does not say.

        Args:
            released: its release; None where none was made.
            counts: replies that were used, and why others were not.
        """
        metrics: dict[str, Any] = {"round": self.number, "released": released is not None}
        if self.sampling.hides_cohort:
            # Who was asked, answered or failed to is part of what the amplification by sampling
            # assumes unseen, and who is late was asked in an earlier round.
            return metrics
        metrics["num_nodes"] = len(self.most_users)
        metrics["num_users"] = 0 if released is None else released.num_users
        return metrics | {key: counts[key] for key in sorted(counts)}

    def why_lost(self, reason: str) -> str:
        """Why there is no sum, as the run directory may hold it.

        Args:
            reason: in full; where who was drawn is secret the server's owner alone is told of it.
        """
        if not self.sampling.hides_cohort:
            return reason
        logger.warning("round %d: %s", self.number, reason, extra=FOR_THE_OWNER)
        return "too few nodes answered for a sum"

    def told(self, counts: Counter[str]) -> str:
        """Why nodes are not in the sum, as ": 2 x the client app failed"; "" where all are.

        Args:
            counts: replies that were used, and why others were not.
        """
        found = [
            f"{count} x {words_of(reason)}"
            for reason, count in sorted(counts.items())
            if count and reason != "answers" and reason not in BESIDE
        ]
        return f": {', '.join(found)}" if found else ""

    def consequence_of_silence(self, *, makes_up: bool, go_on: str) -> str:
        """What rounds that too few answered have cost, and how the run goes on.

        Args:
            makes_up: whether a round that nobody answered may be asked again.
            go_on: what to do.
        """
        if self.secure:
            return f"they are charged if nodes had answered; {go_on}"
        if self.sampling.hides_cohort:
            return f"they are charged; {go_on}"
        if not makes_up:
            return f"they are not asked again; {go_on}, which goes on with the next"
        return f"they cost nothing; {go_on}, which asks them again"


def refuse_unfit(
    question: Question, number: int, *, phase: Phase, source: RecordSource, roster: Roster
) -> None:
    """Refuse what a round may not ask, before it is begun: what was begun is charged.

    Args:
        question: that the round is about to ask, with the broadcast as it travels.
        number: of the round.
        phase: of the round.
        source: what makes the records that the question is about.
        roster: everybody who may answer.

    Raises:
        ConfigError: no node would answer it, or its sums may leave the exact numbers.
        RuntimeError: the phase does not ask it.
    """
    refuse_other_question(question.query, phase)
    refuse_unanswerable(question, number=number, dimension=source.dimension)
    refuse_off_the_grid(question.query, roster)


def refuse_other_question(query: Query, phase: Phase) -> None:
    """A phase was accounted and announced for its own questions.

    Args:
        query: that a round is about to ask.
        phase: of the round.

    Raises:
        RuntimeError: the phase does not ask it.
    """
    asks = {one.name for one in phase.asks}
    if query.name not in asks:
        raise RuntimeError(
            f'the phase "{phase.name}" asks {" or ".join(sorted(asks))}, not {query.name}'
        )


def refuse_unanswerable(question: Question, *, number: int, dimension: int) -> None:
    """Refuse, before a round is begun, a question that no node would answer.

    Nodes check for themselves. But a question that all of them refuse would cost what one that they
    answer does, in this round and in every one that is asked when the run goes on.

    Args:
        question: that a round is about to ask, with the broadcast as it travels.
        number: of the round.
        dimension: of the users' records, as for `Query.check`.

    Raises:
        ConfigError: it cannot be carried to the nodes, its own check refuses what is sent, or it
            cannot answer about public records.
    """
    query, broadcast = question.query, question.broadcast
    refuse_uncarried(query)
    try:
        query.check(broadcast, dimension=dimension)
        # Ours answer in the package's tests, and a sum as long as a model is not made for nothing.
        if not query.bundled:
            try_query(query, broadcast, dimension=dimension)
    except Exception as error:
        raise ConfigError(
            f"no node can answer {query.name} as round {number} would ask it "
            f"({type(error).__name__}: {error}); the round is not asked and not charged"
        ) from error


def refuse_off_the_grid(query: Query, roster: Roster) -> None:
    """Refuse, before anybody is asked, sums that may leave the exact numbers.

    Args:
        query: that a round is about to ask.
        roster: everybody who may answer.

    Raises:
        ConfigError: a node's sum or the whole may be too large for the grid.
    """
    most = max(roster.users.values(), default=0)
    users = roster.total
    largest = query.answer_bound(users)
    if largest <= LARGEST_SUM:
        return
    told, advice = f"{users} users", "choose a smaller clip norm"
    rest = users - most
    if 0 < rest < most and query.answer_bound(rest) <= LARGEST_SUM:
        # A node can announce what it likes: without this one there would be nothing to refuse.
        told = f"{users} users, {most} of whom one node announces by itself,"
        advice = "look whether it has so many (the ServerApp's log names the node), or " + advice
        loudest = max(roster.users, key=lambda node: roster.users[node])
        logger.warning("node %d announces %d users", loudest, most, extra=FOR_THE_OWNER)
    raise ConfigError(
        f"a clip norm of {query.clip_norm:g} for {told} lets the sum reach {largest:g}; "
        f"sums are exact up to 2^23 = {LARGEST_SUM:,.0f}: {advice}"
    )
