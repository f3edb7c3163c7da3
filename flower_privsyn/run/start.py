"""Getting ready: the method's models, the nodes, the noise. Nothing of it costs any budget."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from flwr.serverapp import Grid

from flower_privsyn.models import stamped
from flower_privsyn.queries import Query
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.changes import (
    changes_of_run,
    record_changes,
    record_generators,
    refuse_another_writer,
)
from flower_privsyn.run.method import Method, RecordSource, RunContext
from flower_privsyn.run.plan import (
    SettledPlan,
    announcement,
    check_noise,
    plan_of,
    refuse_unfit_noise,
    settle,
)
from flower_privsyn.run.progress import Progress
from flower_privsyn.run.roster import Attendance, Meeting, Roster
from flower_privsyn.run.rounds import (
    Releases,
    all_asked,
    nothing_spent,
    rounds_behind,
)
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.state import last_state
from flower_privsyn.secure_aggregation import Terms

logger = logging.getLogger("flwr.privsyn")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a run knows of its nodes and their noise, from the meeting on.

    Attributes:
        roster: who can be asked.
        settled: phases and their noise.
        sources: what makes records, one for each kind.
        attendance: counts rounds that were lost.
        terms: of secure aggregation; None without it.
    """

    roster: Roster
    settled: SettledPlan
    sources: tuple[RecordSource, ...]
    attendance: Attendance
    terms: Terms | None = None

    def source_of(self, query: Query) -> RecordSource:
        """What makes the records that a question is about."""
        for source in self.sources:
            if source.suits(query):
                return source
        raise RuntimeError(f"the method prepared no records for {query.name}")


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Everything that must hold before the first question.

    Attributes:
        run: the run directory.
        settings: the settings.
        method: to be prepared.
        strategy: the name of the strategy that runs it.
        grid: Flower's connection to the nodes.
        timeout: seconds to wait for their replies.
    """

    run: RunDirectory
    settings: PrivateSumConfig
    method: Method
    strategy: str
    grid: Grid
    timeout: float

    def get_ready(self, *, resume: bool) -> Federation | None:
        """Prepare the method, meet the nodes and settle the noise.

        Args:
            resume: whether the run directory holds a run to go on with.

        Returns:
            What is known of the nodes; None where every round of a resumed run has been asked.

        Raises:
            PrivsynError: a setting, a file, a model, the federation or the budget is at fault.
        """
        run, settings, method = self.run, self.settings, self.method
        changes = self._changes() if resume else {}
        progress = run.progress()
        logger.info("run directory: %s", run.path)
        if method.stamp is not None:
            logger.warning("%s", method.stamp)
        for needed in method.needs().models:
            stamped.refuse(needed.setting, needed.name)
        sources = method.setup(RunContext(run=run, progress=progress, released=Releases(run).of))
        if resume:
            record_changes(run, changes)
        record_generators(run, method)
        if resume and all_asked(run, num_rounds=settings.num_rounds):
            logger.info("every round has been asked: the result is made without the nodes")
            return None
        # The noise of a fixed-size cohort depends on the roster.
        settled = None
        if settings.sampling != "fixed-size":
            settled = self._settled(population=max(1, settings.num_users))
        spent = nothing_spent(run, settings)
        meeting = self._meeting(sources, progress=progress, spent=spent, resume=resume)
        roster = meeting.hold(announcement(method, settings, settled, behind=rounds_behind(run)))
        settings.check_delta(roster.total)
        # Nodes without users have nothing to hide and are asked nothing.
        asked = sum(users > 0 for users in roster.users.values())
        terms = settings.secure_terms(asked)
        if settled is None:
            settled = self._settled(population=roster.total)
        settled = settled.for_population(roster.total)
        for phase in settled.plan.phases:
            settings.required_users(phase.sampling)  # refuses more than there will be
        logger.info(
            "%d users on %d nodes; noise multiplier %s",
            roster.total,
            len(roster.users),
            ", ".join(f"{phase.noise_multiplier:.5g}" for phase in settled.plan.phases),
        )
        if terms is not None:
            refuse_unfit_noise(settled.plan, terms, nodes=asked)
            logger.info(
                "secure aggregation: sums of at least %d of %d nodes, %d of which may collude with "
                "the server; each adds noise of %.3g times that of the sum",
                terms.least_nodes,
                asked,
                terms.colluding,
                terms.noise_share,
            )
        check_noise(settled.plan, settings, progress=progress, spent=spent)
        known = (last_state(run) or (0, None))[1]
        if (found := method.check(settled.plan, spent=spent, state=known)) is not None:
            if found.warning:  # the session's warnings are noted
                logger.warning("%s", found.sentence)
            else:
                logger.info("%s", found.sentence)
                progress.note(found.sentence)
        secret = any(phase.sampling.hides_cohort for phase in settled.plan.phases)
        return Federation(
            roster=roster,
            settled=settled,
            sources=sources,
            attendance=Attendance(secret=secret),
            terms=terms,
        )

    def _meeting(
        self, sources: tuple[RecordSource, ...], *, progress: Progress, spent: str, resume: bool
    ) -> Meeting:
        return Meeting(
            grid=self.grid,
            settings=self.settings,
            timeout=self.timeout,
            sources=sources,
            progress=progress,
            nothing_spent=spent,
            resumed=self.run if resume else None,
        )

    def _changes(self) -> dict[str, tuple[Any, Any]]:
        """What a run that is resumed does otherwise; refused where it may not."""
        self.run.ledger_lines()  # a cut ledger is refused before anybody is asked
        changes = changes_of_run(self.run, self.settings, strategy=self.strategy, grid=self.grid)
        refuse_another_writer(self.run, self.method, named="generator" in changes)
        return changes

    def _settled(self, *, population: int) -> SettledPlan:
        plan = plan_of(self.method, self.settings, population=population)
        return settle(plan, epsilon=self.settings.epsilon, run=self.run)
