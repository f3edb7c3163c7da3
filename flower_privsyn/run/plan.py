"""From settings to the phases of a run, and what their noise leaves, before anybody is asked."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Self

from flower_privsyn.errors import ConfigError
from flower_privsyn.messages.wire import Announcement, ToCome, refuse_uncarried
from flower_privsyn.privacy import NeighboringRelation, Phase, Plan
from flower_privsyn.privacy.calibrated import left_after
from flower_privsyn.privacy.mechanisms import LARGEST_NOISE, STEPS
from flower_privsyn.progress import Progress
from flower_privsyn.run.method import Method
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.secure_aggregation.terms import LEAST_STEPS, Terms

logger = logging.getLogger("flwr.privsyn")


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
    plan = settings.plan(phases)
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


def announcement(
    method: Method, settings: PrivateSumConfig, plan: Plan | None, *, behind: int
) -> Announcement:
    """What the run may still ask, for nodes to refuse before anything is spent.

    Args:
        method: says its questions.
        settings: the settings.
        plan: settled; None where the noise depends on the roster: each node then hears of it
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
    if plan is None:
        return known
    left = left_after(plan, behind)
    if len(plan.phases) == 1 and behind < plan.rounds:
        # Whoever has charged correlated rounds knows them by their stream.
        (phase,) = plan.phases
        left = plan.released_by(phase, rounds=plan.rounds - behind)
        if phase.correlation is not None:
            known = replace(known, stream=phase.correlation.stream)
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

#: How many of them stand out.
_SEEN = 3.0


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

    @property
    def seen(self) -> int:
        """How many users must agree on something for their sum to stand out of the noise."""
        return math.ceil(_SEEN * self.noise_multiplier)

    def __str__(self) -> str:
        """One sentence for the person who started the run."""
        share = float(f"{100.0 / self.signal:.2g}")  # two digits, and never 1.3e+02
        return (
            f"noise against users: its standard deviation is {share:g} % of what the "
            f"{self.users:,.0f} users of a round can add up to; about {self.seen:,} of them "
            "must agree on something for it to be seen"
        )

    def refuse(self, *, spent: str = "nothing was spent") -> None:
        """Stop a run whose releases would be noise.

        Args:
            spent: words for what the run has cost.

        Raises:
            ConfigError: `signal` is below `LEAST_SIGNAL`.
        """
        if self.signal < LEAST_SIGNAL:
            raise ConfigError(
                f"{self}, and above {100.0 / LEAST_SIGNAL:g} % the result is noise whatever they "
                "wrote: take more users, a larger epsilon or, of several, fewer rounds; or set "
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
    checks = [NoiseAgainstUsers.of(phase, settings) for phase in plan.phases]
    if not settings.accept_noise:
        for against in checks:
            against.refuse(spent=spent)
    for sentence in dict.fromkeys(str(one) for one in checks if one.noise_multiplier):
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
