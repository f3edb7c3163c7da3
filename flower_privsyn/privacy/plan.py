"""From a budget to the noise it needs: of equal rounds, and of phases that share one budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Protocol

from annotated_types import Ge

from flower_privsyn.checks import PositiveInt, Settings, check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release, accounted, quietly
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.factorisation import Factorisation
from flower_privsyn.privacy.mechanisms import NeighboringRelation
from flower_privsyn.privacy.sampling import CyclicSampling, FullParticipation, Sampling

_TOLERANCE = 1e-5
# A step of the search beyond either is still a noise multiplier that a release may have.
_LOWEST = 4.0 * accounting.LEAST_MULTIPLIER
_HIGHEST = accounting.LARGEST_MULTIPLIER / 4.0


class BoundedQuestion(Protocol):
    """What a phase may ask: a question whose answers have a bounded L2 norm."""

    name: ClassVar[str]

    @property
    def clip_norm(self) -> float:
        """The bound on one user's answer."""


@dataclass(frozen=True, kw_only=True)
class Phase(Settings):
    """Rounds that share a noise multiplier, a sampling and a correlation.

    Attributes:
        name: for people and errors, unique in a plan.
        rounds: releases, >= 1.
        sampling: who takes part in each of them; turns (`CyclicSampling`) are counted from the
            first round of the whole run.
        asks: the questions that may be asked in it, at least one.
        noise_multiplier: standard deviation of a round's noise over the clip norm (times the nodes
            of one user), >= 0; of correlated noise that of the fresh part of every round. None:
            what the budget of the plan leaves, by `Plan.calibrated_multiplier`.
        factorisation: how the noise of these rounds is correlated; None: each has its own.
        correlation: these rounds as one mechanism, once the plan is calibrated (`calibrated`).

    Raises:
        ConfigError: a value is out of range, or the factorisation is of another number of rounds.
    """

    name: str
    rounds: PositiveInt
    sampling: Sampling
    asks: tuple[BoundedQuestion, ...]
    noise_multiplier: Annotated[float | None, Ge(0)] = None
    factorisation: Factorisation | None = None
    correlation: Correlation | None = None

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if not self.asks:
            raise ConfigError(f'the phase "{self.name}" asks nothing.')
        if self.factorisation is not None and self.factorisation.rounds != self.rounds:
            raise ConfigError(
                f'the phase "{self.name}" has {self.rounds} rounds and a factorisation of '
                f"{self.factorisation.rounds}."
            )

    @property
    def sensitivity(self) -> float:
        """Of all rounds together over that of one round; 1 where the noise is not correlated."""
        if self.factorisation is None:
            return 1.0
        return self.factorisation.sensitivity(self.sampling.min_separation)


#: Most phases of a plan; every method here has one or two. Each costs every node a step of its
#: accountant, and a server could announce many.
MOST_PHASES = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Phases, one after the other, that spend one budget.

    Formal guarantee:
        Unit: one user; relation: `relation`. Phases compose: their releases cost what the
        accountant says of all of them together.

    Attributes:
        phases: one to `MOST_PHASES`, of different names.
        delta: in (0, 1).
        relation: which collections of users are neighbours.
        accountant: "pld" or "rdp".
        max_nodes_per_user: on how many nodes one user may be, >= 1.

    Raises:
        ConfigError: there is no phase or too many, two have one name, or users take turns in other
            rounds than those of their phase.
    """

    phases: tuple[Phase, ...]
    delta: float
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    accountant: str = "pld"
    max_nodes_per_user: int = 1

    def __post_init__(self) -> None:
        """Check the phases against each other."""
        names = [phase.name for phase in self.phases]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"a plan needs phases of different names, got {names}.")
        if len(names) > MOST_PHASES:
            raise ConfigError(f"a plan has at most {MOST_PHASES} phases, got {len(names)}.")
        for phase in self.phases:
            last = self.first_round(phase) + phase.rounds - 1
            if isinstance(phase.sampling, CyclicSampling) and phase.sampling.rounds < last:
                # Whose turn it is follows from the number of the round in the whole run.
                raise ConfigError(
                    f'the cyclic sampling of the phase "{phase.name}" is for '
                    f"{phase.sampling.rounds} rounds, and its last round is number {last}."
                )

    @property
    def rounds(self) -> int:
        """Of all phases."""
        return sum(phase.rounds for phase in self.phases)

    def first_round(self, phase: Phase) -> int:
        """The number of a phase's first round, counted from 1 over the whole run."""
        before = self.phases[: self.phases.index(phase)]
        return 1 + sum(one.rounds for one in before)

    def at(self, number: int) -> Phase:
        """The phase of a round.

        Raises:
            ConfigError: the plan has no such round.
        """
        check_whole("round", number, ge=1, le=self.rounds)
        return next(phase for phase, _ in self.following(number - 1))

    def following(self, number: int) -> Iterator[tuple[Phase, int]]:
        """Each phase that has rounds after a given one, and how many."""
        for phase in self.phases:
            last = self.first_round(phase) + phase.rounds - 1
            if last > number:
                yield phase, min(phase.rounds, last - number)

    @property
    def open(self) -> tuple[Phase, ...]:
        """The phases whose noise follows from the budget."""
        return tuple(phase for phase in self.phases if phase.noise_multiplier is None)

    def released(self) -> Counter[Release]:
        """What the phases with a known noise multiplier release."""
        settled = (phase for phase in self.phases if phase.noise_multiplier is not None)
        return sum(map(self.released_by, settled), Counter[Release]())

    def epsilon(self) -> float:
        """What all phases cost together; infinity where one of them adds no noise.

        Raises:
            ConfigError: a phase is open.
        """
        released = self.costs()["epsilon_release"]
        return math.inf if released is None else released

    def costs(self) -> dict[str, float | None]:
        """Both epsilons of all phases, None where none holds, by the names of the ledger.

        Raises:
            ConfigError: a phase is open.
        """
        if self.open:
            raise ConfigError(
                f'the noise of the phase "{self.open[0].name}" is not settled: calibrate the plan.'
            )
        return accounting.both_epsilons(
            self.released(), delta=self.delta, accountant=self.accountant
        )

    def calibrated_multiplier(self, epsilon: float) -> float:
        """The least noise multiplier of the open phases that keeps a budget.

        All open phases get the same, of what they release: of each round, or of correlated rounds
        all together.

        Args:
            epsilon: the budget of all phases, > 0.

        Raises:
            ConfigError: no phase is open, or no noise keeps the budget, as where the settled
                phases spend it.
        """
        if not self.open:
            raise ConfigError("every phase of the plan states its noise: there is none to settle.")

        def released(multiplier: float) -> Counter[Release]:
            found = (self.released_by(phase, multiplier=multiplier) for phase in self.open)
            return sum(found, Counter[Release]())

        return calibrate_open_releases(
            released,
            settled=self.released(),
            epsilon=epsilon,
            delta=self.delta,
            accountant=self.accountant,
        )

    def for_population(self, population: int) -> Plan:
        """The same plan for another number of users.

        Args:
            population: users on the roster, >= 1.
        """
        return replace(
            self,
            phases=tuple(
                replace(phase, sampling=replace(phase.sampling, population=population))  # type: ignore[type-var]
                for phase in self.phases
            ),
        )

    def with_multiplier(self, multiplier: float) -> Plan:
        """The plan with its open phases settled: a multiplier of what each of them releases."""
        return replace(
            self,
            phases=tuple(
                phase
                if phase.noise_multiplier is not None
                else replace(phase, noise_multiplier=multiplier * phase.sensitivity)
                for phase in self.phases
            ),
        )

    def released_by(
        self, phase: Phase, *, rounds: int | None = None, multiplier: float | None = None
    ) -> Counter[Release]:
        """What one phase releases.

        Correlated rounds are one release, and nothing is gained from who takes part in which.

        Args:
            phase: of this plan.
            rounds: how many of its rounds; all by default. Of correlated ones always all.
            multiplier: of what it releases, where the phase is open.
        """
        if phase.noise_multiplier is not None:
            multiplier = phase.noise_multiplier / phase.sensitivity
        correlated = phase.factorisation is not None
        release = Release(
            noise_multiplier=accounted(multiplier or 0.0),
            sampling=FullParticipation() if correlated else phase.sampling,
            relation=self.relation,
            max_nodes_per_user=self.max_nodes_per_user,
        )
        return Counter({release: 1 if correlated else rounds or phase.rounds})


# The search ---------------------------------------------------------------------------------------


def calibrate_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    rounds: int,
    sampling: Sampling,
    accountant: str = "pld",
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
    max_nodes_per_user: int = 1,
) -> float:
    """Return the smallest noise multiplier that keeps equal rounds within a budget.

    Formal guarantee:
        ``rounds`` Gaussian releases with the returned noise multiplier, sampled and related as
        stated, are (``epsilon``, ``delta``)-differentially private for one user against an observer
        who does not know the cohorts: the accountant was asked about exactly the returned number
        and answered at most ``epsilon``.

    Args:
        epsilon: The budget, above 0.
        delta: Between 0 and 1, exclusive. Below one over the number of users, to mean anything.
        rounds: Releases, at least 1.
        sampling: How every cohort is drawn.
        accountant: "pld" or "rdp".
        relation: Which collections of users are neighbours.
        max_nodes_per_user: On how many nodes one user may be, at least 1.

    Returns:
        The noise multiplier: standard deviation over the norm bound of one user on all nodes
        together. At most 1e-4 (relative) above the smallest that keeps the budget; the same for the
        same arguments.

    Raises:
        ConfigError: A value is out of range, or no noise multiplier between 0.004 and 250,000
            costs that epsilon.

    References:
        Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy",
        algorithm 1, where every user takes part.
    """
    rounds = check_whole("rounds", rounds, ge=1)

    def released(multiplier: float) -> dict[Release, int]:
        release = Release(
            noise_multiplier=multiplier,
            sampling=sampling,
            relation=relation,
            max_nodes_per_user=max_nodes_per_user,
        )
        return {release: rounds}

    return calibrate_open_releases(
        released, settled={}, epsilon=epsilon, delta=delta, accountant=accountant
    )


def calibrate_open_releases(
    released: Callable[[float], Mapping[Release, int]],
    *,
    settled: Mapping[Release, int],
    epsilon: float,
    delta: float,
    accountant: str,
) -> float:
    """Return the smallest noise multiplier that keeps open releases and settled ones in a budget.

    Formal guarantee:
        That of `calibrate_noise_multiplier`, for the releases that ``released`` names at the
        returned multiplier together with those in ``settled``.

    Args:
        released: From a noise multiplier to the open releases, whose cost must fall with it.
        settled: What else is paid from the budget.
        epsilon: The budget, above 0.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".

    Returns:
        The noise multiplier, at most 1e-4 (relative) above the smallest that keeps the budget.

    Raises:
        ConfigError: A value is out of range, or no noise multiplier between 0.004 and 250,000
            keeps the budget.
    """
    epsilon = check_number("epsilon", epsilon, gt=0)
    delta = check_number("delta", delta, gt=0, lt=1)

    def spent(releases: Mapping[Release, int]) -> float:
        return accounting.release_epsilon(releases, delta=delta, accountant=accountant)

    if settled and not spent(settled) < epsilon:
        raise ConfigError(
            f"epsilon {epsilon:g} is spent by the releases whose noise is settled: give them more "
            "noise, or choose a larger epsilon."
        )

    def spent_at(multiplier: float) -> float:
        return spent(Counter(settled) + Counter(released(multiplier)))

    def excess(multiplier: float) -> float:
        """The logarithm of what is spent over the budget; far from 0 only its sign matters."""
        return math.log(min(max(spent_at(multiplier) / epsilon, 0.05), 20.0))

    example = released(1.0)
    count, tolerance = sum(example.values()), _TOLERANCE
    kinds = {accounting.cost(release) for release in example}
    if accountant == "pld" and not settled and [kind for kind, *_ in kinds] == ["gaussian"]:
        import dp_accounting

        ((_, worth, _),) = kinds
        once = quietly(dp_accounting.get_sigma_gaussian, epsilon, delta)
        # The two library functions are inverse up to their tolerance.
        multiplier, tolerance = math.sqrt(count) * once / worth, 1e-12
        _refuse_beyond(multiplier, epsilon)
    else:
        multiplier = _root(excess, start=math.sqrt(count), epsilon=epsilon)
    while spent_at(multiplier) > epsilon:
        multiplier *= 1.0 + tolerance
        tolerance *= 2.0
    return multiplier


def _root(excess: Callable[[float], float], *, start: float, epsilon: float) -> float:
    """Return where a falling function is 0, at most `_TOLERANCE` (relative) above it."""
    from scipy.optimize import brentq

    factor = 2.0 if excess(start) > 0.0 else 0.5
    near, far = start, factor * start
    while (excess(far) > 0.0) == (factor > 1.0):
        _refuse_beyond(far, epsilon)
        near, far = far, factor * far
    # Epsilon is near a power of the noise multiplier: in logarithms it is nearly a line.
    found = brentq(
        lambda logarithm: excess(math.exp(logarithm)),
        math.log(near),
        math.log(far),
        xtol=0.5 * _TOLERANCE,
    )
    return math.exp(found + 0.5 * _TOLERANCE)


def _refuse_beyond(multiplier: float, epsilon: float) -> None:
    if multiplier > _HIGHEST:
        raise ConfigError(
            f"epsilon {epsilon:g} needs a noise multiplier above {_HIGHEST:g}; choose a larger "
            "epsilon or delta."
        )
    if multiplier < _LOWEST:
        raise ConfigError(
            f"epsilon {epsilon:g} is kept with a noise multiplier below {_LOWEST:g}, which is no "
            "privacy; choose a smaller epsilon or a smaller delta."
        )
