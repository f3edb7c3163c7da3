"""The rounds of a run on the disk: finished, skipped, asked again, gone on with."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import partial
from typing import Final

from flower_privsyn.errors import FederationError, LedgerError, StoppedError
from flower_privsyn.privacy import Plan, PrivacyLedger
from flower_privsyn.private_path.method import Method, Question
from flower_privsyn.private_path.release import ReleasedSum, is_stored, store_release
from flower_privsyn.private_path.resume import Releases
from flower_privsyn.runs import RunDirectory, how_to_resume
from flower_privsyn.runs.surroundings import STOPPED
from flower_privsyn.runs.trackers import Following

logger = logging.getLogger("flwr.privsyn")

#: What all rounds of the plan cost together, in the state of round 0.
_PLANNED: Final = "planned"


@dataclass(frozen=True, kw_only=True)
class Next:
    """How a run goes on.

    Attributes:
        behind: rounds that are over.
        question: of the next round; None where nothing more is asked.
    """

    behind: int
    question: Question | None


@dataclass(frozen=True, kw_only=True)
class RoundEnds:
    """Brings rounds to their end, in the run directory and with the method.

    Attributes:
        run: the run directory.
        method: post-processes.
        total: rounds of the whole run.
        tracker: told of every round, and of a failure; None where nobody is.
    """

    run: RunDirectory
    method: Method
    total: int
    tracker: Following | None = None

    def __post_init__(self) -> None:
        """Let the tracker know how the run ends."""
        if self.tracker is not None:
            self.run.follow_failure(partial(self.tracker.tell, self.run))

    def refuse_where_stopped(self, number: int) -> None:
        """End the run where its owner asked for it; the round has not begun, in no ledger.

        Args:
            number: of the round that would begin.

        Raises:
            StoppedError: the owner asked.
        """
        if self.run.owner.stop_file.exists():
            raise StoppedError(
                f"{STOPPED} {number} of {self.total}, as was asked: nothing is lost; go on with "
                f"{how_to_resume(self.run.path)}"
            )

    def settle(self) -> None:
        """Bring the lines of rounds to `metrics.jsonl`, and tell the tracker of all there are."""
        self.run.settle_metrics()
        if self.tracker is not None:
            self.tracker.tell(self.run)

    def finish(self, release: ReleasedSum) -> Question | None:
        """Store a release, post-process it, and close its round; the next question, or None."""
        number = release.round_number
        store_release(self.run, release)
        last = number >= self.total
        following = self.method.following(release, last=last)
        self.run.finish_round(
            number,
            {
                "num_users": release.num_users,
                "noise_std": release.noise_std,
                "outcome": "released",
                **({"ended": True} if following is None and not last else {}),
            },
        )
        return following

    def lose(self, number: int, ledger: PrivacyLedger) -> None:
        """Close a round that was asked and gave no sum, whether or not it was charged."""
        self.skip(number, "lost" if number in ledger.rounds_charged else "discarded")

    def skip(self, number: int, outcome: str) -> None:
        """Close a round that has no release: "discarded" at no charge, "lost" or "interrupted"."""
        if number < self.total:
            self.method.carry_over(number)
        self.run.finish_round(number, {"outcome": outcome})

    def after_skipped(self, number: int) -> Question | None:
        """What is asked after a round that was skipped; None after the last."""
        return None if number >= self.total else self.method.restore(number + 1)

    def begin(self, plan: Plan | None) -> Next:
        """The first question.

        Args:
            plan: of the whole run, whose cost is kept: that of a run whose end its releases decide.
        """
        question = self.method.first()
        self.run.finish_round(0, {} if plan is None else {_PLANNED: plan.costs()})
        return Next(behind=0, question=question)

    def close(self, ledger: PrivacyLedger, *, go_on: str) -> None:
        """Have the ledger state what all planned rounds cost, where fewer were asked.

        A rule of the method that looks at releases, or somebody who did, has chosen the end: see
        `PrivacyLedger.end`. Rounds that were lost, interrupted or discarded are over as well.

        Args:
            ledger: open.
            go_on: words for how a run goes on that has no release, and so nothing to end with.

        Raises:
            FederationError: it has none.
        """
        self._refuse_to_end_empty_handed(ledger, go_on=go_on)
        changes = self.run.document.get("changes", [])
        changed = {key for change in changes for key in change.get("settings", {})}
        last = max(self.run.finished_rounds())
        by_rule = bool((self.run.round_state(last) or {}).get("ended"))
        if not by_rule and "num-rounds" not in changed:
            return
        if ledger.ended or ledger.epsilon_release is None:
            return
        planned = (self.run.round_state(0) or {}).get(_PLANNED, {})
        known = planned.get("epsilon_known_cohorts")
        # Drawn from others, later rounds cost something else, within the budget if there is one;
        # towards who knows the cohorts it is the same.
        others = bool(changed & {"num-users", "num-nodes"})
        release = ledger.epsilon_budget or (known if others else planned.get("epsilon_release"))
        if release is None:
            logger.warning(
                "the run ended early, without a budget, and was begun by a version that did not "
                "keep what it had planned: its epsilons hold for an end that was fixed beforehand"
            )
            return
        ledger.end(round=last, epsilon_release=release, epsilon_known_cohorts=known)

    def go_on(self, ledger: PrivacyLedger, plan: Plan | None) -> Next:
        """Bring the run directory to the end of a round.

        A charged round whose release reached the disk is post-processed again, which is free. A
        charged round whose release was lost stays charged, and what it asked is asked again.

        Args:
            ledger: open.
            plan: of the rounds that are left; None where none is.

        Raises:
            LedgerError: the ledger lacks a round that was released.
        """
        if not self.run.finished_rounds():
            return self.begin(plan)
        self._refuse_missing_lines(ledger)
        self._settle_lines()
        started = [ledger.last_started(correlation) or 0 for correlation in ledger.correlations]
        # A correlated round that was discarded is not asked again, either.
        reached = max((*ledger.rounds_charged, *self.run.finished_rounds(), *started))
        reached = self._take_back(ledger, plan, reached)
        discarded = self._discarded(ledger)
        if reached + 1 in discarded and plan is not None and not plan.at(reached + 1).makes_up:
            reached += 1  # killed before it was closed: whose turn it was had their turn
        releases = Releases(self.run)
        for number in range(1, reached + 1):
            if self.run.round_state(number) is not None:
                continue
            release = releases.of(number)
            if release is None and number in discarded:
                self.skip(number, "discarded")
            elif release is None:
                logger.warning("round %d was interrupted: it is charged and left out", number)
                self._hold_cost(number, ledger)
                self.skip(number, "interrupted")
            else:
                self.finish(release)
        self.run.settle_metrics()
        ended = bool((self.run.round_state(reached) or {}).get("ended"))
        if reached >= self.total or ended:
            return Next(behind=reached, question=None)
        # One that was killed between its discard and its end had carried its question over.
        self.method.take_back(reached + 1)
        return Next(behind=reached, question=self.method.restore(reached + 1))

    def _hold_cost(self, number: int, ledger: PrivacyLedger) -> None:
        """Give a round that was killed while it was asked its line of `metrics.jsonl`.

        Nobody has counted its replies, but epsilon has grown, and whoever reads that file alone
        would miss it. One that was killed later has its line; the line of an earlier time, when it
        was asked and discarded, says what was spent before.
        """
        spent = ledger.spent
        told = [line for line in self.run.metrics() if line.get("round") == number]
        known = [line.get("epsilon_release") or 0.0 for line in told]
        if any(math.isclose(epsilon, spent["epsilon_release"] or 0.0) for epsilon in known):
            return
        stamp = {} if self.method.stamp is None else {"stamp": self.method.stamp}
        self.run.hold_metrics(number, {"round": number, "released": False, **spent, **stamp})

    def _settle_lines(self) -> None:
        """Complete the metrics of rounds that were killed after their users had answered."""
        for number, files in self.run.rounds:
            line = files.record("metrics")
            if line.get("released") and not is_stored(self.run, number):
                # Killed before the sum was on the disk: it was asked for, and is lost.
                counted = {"num_users": 0} if "num_users" in line else {}
                self.run.hold_metrics(number, {**line, **counted, "released": False})
        self.run.settle_metrics()

    def _refuse_to_end_empty_handed(self, ledger: PrivacyLedger, *, go_on: str) -> None:
        """A result without any release would be public text under the name of a private one."""
        if self.run.rounds_with_outcome("released"):
            return
        charged = ledger.num_releases
        again = not ledger.correlations and not charged
        raise FederationError(
            "no round was released, so nothing was learned from the users and no result is "
            f"written; {f'{charged} rounds were charged' if charged else 'nothing was spent'}; "
            + (
                f"{go_on}, which asks again"
                if again
                else "start a new run, whose cost adds to this one's"
                if charged
                else "start a new run"
            )
        )

    def _discarded(self, ledger: PrivacyLedger) -> set[int]:
        """Rounds that cost nothing, by the ledger."""
        lines = self.run.ledger_lines()
        found = {int(line["round"]) for line in lines if line.get("event") == "discarded"}
        return found - set(ledger.rounds_charged)

    def _take_back(self, ledger: PrivacyLedger, plan: Plan | None, reached: int) -> int:
        """Let rounds at the end that were discarded at no charge be asked again.

        Not of correlated noise: there the second answer of a user would be one more than the
        sensitivity allows for.
        """
        charged, discarded = ledger.rounds_charged, self.run.rounds_with_outcome("discarded")
        while (
            reached in discarded
            and reached not in charged
            and plan is not None
            and reached <= plan.rounds
            and plan.at(reached).makes_up
        ):
            # In this order: a round that is not open is taken back again after a kill in between.
            self.method.take_back(reached)
            self.run.reopen_round(reached)
            reached -= 1
        return reached

    def _refuse_missing_lines(self, ledger: PrivacyLedger) -> None:
        """A ledger that was removed or cut must not make a resumed run look cheaper."""
        charged = set(ledger.rounds_charged)
        released = set(self.run.rounds_with_outcome("released"))
        for number in range(1, self.total + 1):
            if (is_stored(self.run, number) or number in released) and number not in charged:
                raise LedgerError(
                    f"{self.run.ledger_file} has no line for round {number}, which was released: "
                    "the ledger was removed or cut, and the run cannot continue"
                )
