"""From a privacy budget to the noise it needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release, quietly
from flower_privsyn.privacy.mechanisms import NeighboringRelation
from flower_privsyn.privacy.sampling import Sampling

_TOLERANCE = 1e-5
# A step of the search beyond either is still a noise multiplier that a release may have.
_LOWEST = 4.0 * accounting.LEAST_MULTIPLIER
_HIGHEST = accounting.LARGEST_MULTIPLIER / 4.0


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
    accountant: str = "pld",
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
