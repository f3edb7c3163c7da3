"""From settings and a budget to the noise of every phase, before anybody is asked."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from flower_privsyn.errors import BudgetExceededError, ConfigError
from flower_privsyn.messages.wire import Announcement, ToCome, refuse_uncarried
from flower_privsyn.privacy import (
    Correlation,
    FullParticipation,
    NeighboringRelation,
    Phase,
    Plan,
    PrivacyLedger,
    Release,
)
from flower_privsyn.privacy.calibration import calibrate_open_releases
from flower_privsyn.privacy.mechanisms import LARGEST_NOISE, STEPS
from flower_privsyn.privacy.plan import BoundedQuestion
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.method import Method
from flower_privsyn.run.rounds import rounds_behind
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.secure_aggregation import Terms
from flower_privsyn.secure_aggregation.terms import LEAST_STEPS

logger = logging.getLogger("flwr.privsyn")

#: Room for rounding when settled noise is held against a budget, relative.
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class SettledPlan:
    """A plan whose noise is settled, with the streams of its correlated phases.

    Attributes:
        plan: without open phases.
        correlations: the rounds of a correlated phase as one mechanism, by the phase's name.
    """

    plan: Plan
    correlations: Mapping[str, Correlation]

    def for_population(self, population: int) -> SettledPlan:
        """The same of another number of users."""
        return replace(self, plan=self.plan.for_population(population))


def plan_of(method: Method, settings: PrivateSumConfig, *, population: int) -> Plan:
    """The phases of a run, some of them perhaps open.

    Args:
        method: says its phases, or leaves them to the settings.
        settings: the settings.
        population: users on the roster, or the fewest there must be.

    Raises:
        ConfigError: the phases have another number of rounds than the settings, or cannot be; or
            no message carries what one of the questions is made of.
    """
    for query in method.queries:
        refuse_uncarried(query)
    phases = method.phases(population)
    if phases is None:
        phases = (settings.phase(population, asks=method.queries),)
    plan = Plan(
        phases=phases,
        delta=settings.delta,
        relation=NeighboringRelation(settings.relation),
        accountant=settings.accountant,
        max_nodes_per_user=settings.max_nodes_per_user,
    )
    if plan.rounds != settings.num_rounds:
        listed = ", ".join(f"{phase.rounds} of {phase.name}" for phase in phases)
        raise ConfigError(
            f"num-rounds = {settings.num_rounds} differs from the {plan.rounds} rounds of the "
            f"method ({listed})"
        )
    for phase in phases:
        if settings.secure_aggregation and phase.factorisation is not None:
            raise ConfigError(
                f'the noise of the phase "{phase.name}" is correlated over its rounds, and under '
                "secure aggregation nodes add noise that is not: use secure-aggregation = false, "
                "or another method"
            )
    return plan


def settle(plan: Plan, *, epsilon: float | None, run: RunDirectory | None) -> SettledPlan:
    """Settle the correlation and the noise of every phase.

    Formal guarantee:
        With a budget, what the ledger has charged and all rounds that are left cost at most
        `epsilon`, by the plan's accountant, if every one of them is as stated. The ledger holds to
        the budget whatever is returned here.

    Args:
        plan: some phases perhaps open.
        epsilon: the budget; None where every phase states its noise.
        run: its directory: what was begun there goes on with the correlation and noise it has. None
            of a run that is not started.

    Raises:
        BudgetExceededError: no noise makes the rounds that are left fit.
        ConfigError: a phase has no noise and there is no budget, or the phases exceed it.
    """
    ledger = None
    if run is not None and run.ledger_file.exists():
        ledger = PrivacyLedger.read(run.ledger_file)
    begun = (
        {} if ledger is None else {c.first_round: (c, m) for c, m in ledger.correlations.items()}
    )
    correlations: dict[str, Correlation] = {}
    phases: list[Phase] = []
    for phase in plan.phases:
        first = plan.first_round(phase)
        if phase.factorisation is None:
            phases.append(phase)
        elif first in begun:
            correlation, multiplier = begun[first]
            stated = phase.noise_multiplier
            if stated is not None and not math.isclose(stated, multiplier, rel_tol=_ROUNDING):
                raise ConfigError(
                    f'the phase "{phase.name}" was begun with a noise multiplier of '
                    f"{multiplier:.6g}, by the ledger, and the settings state {stated:.6g}"
                )
            correlations[phase.name] = correlation
            phases.append(
                replace(
                    phase,
                    factorisation=correlation.factorisation,
                    noise_multiplier=multiplier,
                )
            )
        else:
            correlations[phase.name] = Correlation.create(
                phase.factorisation,
                min_separation=phase.sampling.min_separation,
                first_round=first,
            )
            phases.append(phase)
    plan = replace(plan, phases=tuple(phases))
    return SettledPlan(plan=_with_noise(plan, epsilon, run, ledger), correlations=correlations)


def _with_noise(
    plan: Plan, epsilon: float | None, run: RunDirectory | None, ledger: PrivacyLedger | None
) -> Plan:
    if plan.open and epsilon is None:
        raise ConfigError(
            f'the phase "{plan.open[0].name}" states no noise multiplier, and there is no epsilon '
            "for it to follow from"
        )
    if plan.open and epsilon is not None:
        multiplier = plan.calibrated_multiplier(epsilon)
        if run is not None and ledger is not None:
            multiplier = _for_the_rest(plan, multiplier, behind=rounds_behind(run), ledger=ledger)
        return plan.with_multiplier(multiplier)
    if epsilon is not None and plan.epsilon() > epsilon * (1.0 + _ROUNDING):
        raise ConfigError(
            f"the phases cost epsilon = {plan.epsilon():.6g} together, above the budget of "
            f"{epsilon:g}: give them more noise, or choose a larger epsilon"
        )
    return plan


def _for_the_rest(plan: Plan, planned: float, *, behind: int, ledger: PrivacyLedger) -> float:
    """The noise with which the rounds that are left fit into what is left of the budget.

    The users may be fewer than when the run began: a round that draws as many of them then costs
    more than was planned, and those that were charged are charged.

    Returns:
        The planned multiplier, or the least that fits.
    """

    def left(multiplier: float) -> Counter[Release]:
        return _left(plan.with_multiplier(multiplier), behind)

    if ledger.epsilon_budget is None or ledger.allows(left(planned)):
        return planned
    try:
        multiplier = calibrate_open_releases(
            left,
            settled=ledger.committed,
            epsilon=ledger.epsilon_budget,
            delta=ledger.delta,
            accountant=ledger.accountant,
        )
    except ConfigError as error:
        raise BudgetExceededError(
            f"the {plan.rounds - behind} rounds that are left do not fit into what the "
            f"{ledger.num_releases} charged ones leave of epsilon = {ledger.epsilon_budget:g}, "
            "whatever their noise"
        ) from error
    logger.warning(
        "noise multiplier %.5g from now on, in place of %.5g: the rounds that were charged "
        "leave no room for less",
        multiplier,
        planned,
    )
    return multiplier


def _left(plan: Plan, behind: int) -> Counter[Release]:
    """What the rounds after a given one release; a correlated phase was paid for when it began."""
    total = Counter[Release]()
    for phase, rounds in plan.following(behind):
        begun = rounds < phase.rounds
        if phase.factorisation is not None and begun:
            continue
        total += plan.released_by(phase, rounds=rounds)
    return total


def announcement(
    method: Method, settings: PrivateSumConfig, settled: SettledPlan | None, *, behind: int
) -> Announcement:
    """What the run may still ask, for nodes to refuse before anything is spent.

    Args:
        method: says its questions.
        settings: the settings.
        settled: the plan; None where the noise depends on the roster: each node then hears of it
            with the first question.
        behind: rounds that nobody will be asked again.
    """
    queries = method.queries
    known = Announcement(
        queries=tuple(dict.fromkeys(query.name for query in queries)),
        num_rounds=settings.num_rounds,
        clip_norm=max(query.clip_norm for query in queries),
        relation=NeighboringRelation(settings.relation),
        secure=settings.secure_aggregation,
    )
    if settled is None:
        return known
    plan = settled.plan
    if len(plan.phases) == 1:
        (phase,) = plan.phases
        correlation = settled.correlations.get(phase.name)
        multiplier = phase.noise_multiplier or 0.0
        count, sampling = max(0, settings.num_rounds - behind), phase.sampling
        if correlation is not None:
            multiplier = correlation.noise_multiplier(multiplier)
            known = replace(known, stream=correlation.stream)
            count, sampling = min(1, count), FullParticipation()
        one = ToCome(count=count, noise_multiplier=multiplier, sampling=sampling)
        return replace(known, noise_multiplier=multiplier, to_come=(one,) if count else ())
    left = _left(plan, behind)
    # Where the last phase is paid for and has rounds left, nodes are asked at its noise.
    told = left or plan.released_by(plan.phases[-1])
    return replace(
        known,
        noise_multiplier=min(release.noise_multiplier for release in told),
        to_come=tuple(
            ToCome(
                count=count, noise_multiplier=release.noise_multiplier, sampling=release.sampling
            )
            for release, count in left.items()
        ),
    )


#: How many standard deviations of the noise the sum of a round must be able to reach.
LEAST_SIGNAL = 10.0


@dataclass(frozen=True, kw_only=True)
class NoiseAgainstUsers:
    """What a round's noise leaves of what its users say.

    Attributes:
        users: users expected in a round, > 0.
        noise_multiplier: standard deviation of a round's noise over the clip norm, >= 0.
    """

    users: float
    noise_multiplier: float

    @classmethod
    def of(cls, phase: Phase, settings: PrivateSumConfig) -> Self:
        """Those of a phase whose noise is settled.

        Args:
            phase: of a plan.
            settings: of the run.
        """
        # Over the clip norm: a user's answer of one node.
        times = settings.max_nodes_per_user * settings.noise_times
        return cls(
            users=phase.sampling.expected_users,
            noise_multiplier=(phase.noise_multiplier or 0.0) * times,
        )

    @property
    def signal(self) -> float:
        """How far the sum moves when all users agree, in standard deviations of the noise.

        Each user moves it by the clip norm at most, so it is users over noise multiplier. It does
        not depend on the text: fewer than a handful of standard deviations cannot be told from
        nothing whatever was written, and even ten leave a tenth of the users who agree unseen.
        """
        return math.inf if self.noise_multiplier == 0 else self.users / self.noise_multiplier

    def describe(self, queries: Sequence[BoundedQuestion]) -> str:
        """One sentence for the person who started the run.

        Args:
            queries: what the run asks.
        """
        asked = "; then ".join(query.noise_in_words(self.noise_multiplier) for query in queries)
        return (
            f"noise against users: {asked}. {_count(self.users)} answer a round: if all of them "
            f"agreed, their sum would be {self.signal:.3g} standard deviations of the noise"
        )

    def refuse(
        self, queries: Sequence[BoundedQuestion], *, spent: str = "nothing was spent"
    ) -> None:
        """Stop a run whose releases would be noise.

        Args:
            queries: what the run asks.
            spent: words for what the run has cost.

        Raises:
            ConfigError: `signal` is below `LEAST_SIGNAL`.
        """
        if self.signal < LEAST_SIGNAL:
            raise ConfigError(
                f"{self.describe(queries)}, and below {LEAST_SIGNAL:g} the result is noise "
                "whatever they wrote: take more users, a larger epsilon or fewer rounds, or set "
                f"accept-noise = true to run all the same; {spent}"
            )


def check_noise(plan: Plan, settings: PrivateSumConfig, *, progress: Progress, spent: str) -> None:
    """Set the noise of every phase against the users, in words, and refuse noise alone.

    Args:
        plan: settled, with the population that there is.
        settings: the settings.
        progress: where the sentences are noted.
        spent: words for what the run has cost.

    Raises:
        ConfigError: a phase is noise alone, and `accept_noise` is not set.
    """
    checks = [(NoiseAgainstUsers.of(phase, settings), phase.asks) for phase in plan.phases]
    if not settings.accept_noise:
        for against, asks in checks:
            against.refuse(asks, spent=spent)
    for against, asks in checks:
        logger.info("%s", sentence := against.describe(asks))
        progress.note(sentence)


def refuse_unfit_noise(plan: Plan, terms: Terms, *, nodes: int) -> None:
    """Refuse noise that nodes cannot add on the grid, each its share.

    Args:
        plan: settled.
        terms: of secure aggregation.
        nodes: that may be in a sum.

    Raises:
        ConfigError: it is too little to be rounded or too much to be added up.
    """
    for phase in plan.phases:
        for query in phase.asks:
            whole = (phase.noise_multiplier or 0.0) * query.clip_norm * plan.max_nodes_per_user
            own = whole * terms.noise_share
            if own * STEPS < LEAST_STEPS or own * math.sqrt(nodes) > LARGEST_NOISE:
                raise ConfigError(
                    f'the noise of the phase "{phase.name}", {own:g} on each node, must be between '
                    f"{LEAST_STEPS:g} steps of the grid, {LEAST_STEPS / STEPS:.3g}, and 2^28 for "
                    "all nodes together"
                )


def _count(users: float) -> str:
    if users == 1:
        return "1 user is to"
    return f"{users:,.0f} users" if users == int(users) else f"About {users:,.3g} users"
