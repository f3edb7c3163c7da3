"""From a privacy budget to the noise it needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release
from flower_privsyn.privacy.loss_distributions import quietly
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import Sampling

_TOLERANCE = 1e-4
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
    if (
        settled
        and not accounting.release_epsilon(settled, delta=delta, accountant=accountant) < epsilon
    ):
        raise ConfigError(
            f"epsilon {epsilon:g} is spent by the releases whose noise is settled: give them more "
            "noise, or choose a larger epsilon."
        )

    def all_at(multiplier: float) -> Counter[Release]:
        return Counter(settled) + Counter(released(multiplier))

    def spent(multiplier: float) -> float:
        return accounting.release_epsilon(all_at(multiplier), delta=delta, accountant=accountant)

    def roughly_spent(multiplier: float) -> float:
        return accounting.rough_epsilon(all_at(multiplier), delta=delta, accountant=accountant)

    example = released(1.0)
    count = sum(example.values())
    if len(example) == 1 and not settled and accountant == "pld":
        (release,) = example
        if release.sampling.rate == 1.0:
            return _closed_form(spent, epsilon, delta, count, release.relation)
    low, high = _bracket(roughly_spent, epsilon, start=math.sqrt(count))
    low, high = _narrow(roughly_spent, epsilon, low, high)
    # How much epsilon grows over the tolerance, to know from one evaluation of the full
    # accountant that the result is not too large.
    least = roughly_spent(high)
    growth = math.log(roughly_spent(high * math.exp(-_TOLERANCE)) / least) if least > 0.0 else 0.0
    return _refine(spent, epsilon, low, high, growth)


def _closed_form(
    spent: Callable[[float], float],
    epsilon: float,
    delta: float,
    rounds: int,
    relation: NeighboringRelation,
) -> float:
    import dp_accounting

    doubled = 2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
    once = quietly(dp_accounting.get_sigma_gaussian, epsilon, delta)
    multiplier = doubled * math.sqrt(rounds) * once
    if multiplier > _HIGHEST:
        raise _too_strict(epsilon)
    if multiplier < _LOWEST:
        raise _too_loose(epsilon)
    # The two library functions are inverse up to their tolerance; stay on the safe side of it.
    step = 1e-12
    while spent(multiplier) > epsilon:
        multiplier *= 1.0 + step
        step *= 2.0
    return float(multiplier)


def _bracket(
    spent: Callable[[float], float], epsilon: float, *, start: float
) -> tuple[float, float]:
    """Return (low, high) with spent(low) > epsilon >= spent(high)."""
    if spent(start) <= epsilon:
        high = start
        while spent(low := high / 2.0) <= epsilon:
            high = low
            if high < _LOWEST:
                raise _too_loose(epsilon)
        return low, high
    low = start
    while spent(high := low * 2.0) > epsilon:
        low = high
        if low > _HIGHEST:
            raise _too_strict(epsilon)
    return low, high


def _narrow(
    spent: Callable[[float], float], epsilon: float, low: float, high: float
) -> tuple[float, float]:
    """Shrink the bracket to 1e-5, relative, with few evaluations.

    Regula falsi in logarithms (epsilon is near a power of the noise multiplier), with the
    Illinois rule so that neither end stays behind, and a bisection when a step gains little.
    """
    value_low, value_high = math.log(spent(low) / epsilon), _log_ratio(spent(high), epsilon)
    for step in range(200):
        width = math.log(high / low)
        if width <= 0.1 * _TOLERANCE:
            break
        fraction = 0.5
        if step % 3 != 2 and math.isfinite(value_low) and math.isfinite(value_high):
            fraction = value_low / (value_low - value_high)
            # Land just beyond the root on alternate sides, so that both ends close in.
            nudge = 0.03 * _TOLERANCE / width
            fraction += nudge if step % 2 == 0 else -nudge
            fraction = min(0.99, max(0.01, fraction))
        middle = low * math.exp(fraction * width)
        value = _log_ratio(spent(middle), epsilon)
        if value > 0.0:
            low, value_low = middle, value
        else:
            high, value_high = middle, value
    return low, high


def _refine(
    spent: Callable[[float], float], epsilon: float, low: float, high: float, growth: float
) -> float:
    """Return a noise multiplier the full accountant accepts, 1e-4 above the least at most.

    The rough bracket may be a little off. Widen it until the full accountant agrees with both
    ends, then halve it.
    """
    step = 0.3 * _TOLERANCE
    if (value := spent(high)) <= epsilon:
        if value > 0.0 and math.log(epsilon / value) < 0.7 * growth:
            return high
        while spent(low := high * math.exp(-step)) <= epsilon:
            high, step = low, 2.0 * step
    else:
        low = high
        while spent(high := low * math.exp(step)) > epsilon:
            low, step = high, 2.0 * step
    while math.log(high / low) > _TOLERANCE:
        middle = math.sqrt(low * high)
        if spent(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high


def _too_strict(epsilon: float) -> ConfigError:
    return ConfigError(
        f"epsilon {epsilon:g} needs a noise multiplier above {_HIGHEST:g}; choose a larger epsilon "
        "or delta."
    )


def _too_loose(epsilon: float) -> ConfigError:
    return ConfigError(
        f"epsilon {epsilon:g} is kept with a noise multiplier below {_LOWEST:g}, which is no "
        "privacy; choose a smaller epsilon or a smaller delta."
    )


def _log_ratio(value: float, epsilon: float) -> float:
    return math.log(value / epsilon) if value > 0.0 else -math.inf
