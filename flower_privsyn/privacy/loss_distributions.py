"""Privacy loss distributions of releases: exact if all are Gaussian, else discretised upwards.

Discretised ones are composed by Fourier transforms, whose rounding errors are absolute: they grow
with the number of releases, and may be all there is of a probability of 1e-12. So they are counted
against delta, and where they would take most of it Renyi divergences bound epsilon.

Unsampled releases use the exact Gaussian closed form. Sampled ones are discretised at 1e-4 with
pessimistic rounding, as ``dp_accounting`` does by default; where epsilon exceeds 20 or the noise
multiplier is below 0.14, the interval grows with the losses, to bound the memory.

Fixed-size cohorts: given the other members, the sum is that of a target drawn with probability n/N
over a stand-in drawn otherwise, both of norm at most C. Relative to the stand-in the target's two
versions lie within 2 C, so the pair of mixtures is dominated by the Poisson-sampled pair (+2 C,
-2 C) at rate n/N: replace-one at half the noise multiplier. This is ``dp_accounting``'s truncated
Poisson event with sampling probability 1.

References:
    Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", theorem 8.
    Doroshenko et al. 2022, "Connect the Dots", algorithm 1. Lebeda et al. 2024, "Avoiding Pitfalls
    for Privacy Accounting of Subsampled Mechanisms under Composition".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import renyi
from flower_privsyn.privacy.renyi import Cost, Costs


@lru_cache(maxsize=4096)
def epsilon(costs: Costs, delta: float) -> float:
    """Return the epsilon of releases at a delta.

    Args:
        costs: What they cost, at least one.
        delta: Between 0 and 1, exclusive.
    """
    if all(kind == "gaussian" for (kind, *_), _ in costs):
        import dp_accounting

        return quietly(dp_accounting.get_epsilon_gaussian, _gaussian_multiplier(costs), delta)
    left = delta - _rounding(costs)
    found = math.inf
    if left > 0.0:
        found = float(_pld(costs, _interval(costs, delta)).get_epsilon_for_delta(left))
    if left < delta / 2.0:
        # A bound that needs no Fourier transform; not all releases have one.
        with suppress(ConfigError):
            found = min(found, renyi.epsilon(costs, delta))
    return found


def quietly(closed_form: Callable[[float, float], float], value: float, delta: float) -> float:
    """Ask the library for a closed form of the Gaussian mechanism, without its warnings.

    On its way it takes the logarithm of a difference of probabilities, which is 0 where they agree
    to the last digit: minus infinity is right there, and the warning tells nobody anything.
    """
    with np.errstate(divide="ignore"):
        return float(closed_form(value, delta))


#: By how much the rounding of one more release may move a tail of the composed distribution: 16
#: times the most that was seen against closed forms.
_ROUNDING = 2.0**-52


def _rounding(costs: Costs) -> float:
    """How far a composed probability may be below the true one, in delta."""
    return _ROUNDING * sum(count for (kind, *_), count in costs if kind != "gaussian")


def _gaussian_multiplier(costs: Iterable[tuple[Cost, int]]) -> float:
    """Return the noise multiplier of the one Gaussian release equal to all of these."""
    precision = math.fsum(count / multiplier**2 for (_, multiplier, *_), count in costs)
    return 1.0 / math.sqrt(precision)


_FINEST_INTERVAL = 1e-4
_RELATIVE_INTERVAL = 5e-6


def _interval(costs: Costs, delta: float) -> float:
    """Return the discretisation: 1e-4 up to an epsilon of 20, then in proportion to it.

    It decides how tight epsilon is, and never whether it is an upper bound. As a function of
    e^epsilon, the delta of one release is convex. The library puts in its place the chords between
    the points of its grid (Doroshenko et al. 2022, "Connect the Dots"), which lie above it whatever
    the points are, and of which those of a subset of points lie above those of all. Composition
    keeps that order, and what is cut off the tails counts as infinite loss. So every interval
    gives at least the true epsilon, but for the rounding that `_rounding` counts, and a multiple of
    it at least as much. (Beyond 745, where e^-epsilon is no number any longer, the library takes
    the first point of the grid above which there is less mass than delta: a bound as well, which a
    multiple may tighten.) The first look chooses the interval alone.
    """
    widest = together = 0.0
    for (kind, multiplier, *_), count in costs:
        shift = 2.0 if kind == "poisson-replace" else 1.0
        width = 10.0 * shift / multiplier + 0.5 * (shift / multiplier) ** 2
        widest = max(widest, width)
        together += width * math.sqrt(count)
    # The losses of one release spread that wide even where epsilon is small, because the rate or
    # the noise is: at most a million points of them are kept.
    finest = max(_FINEST_INTERVAL, 10.0 ** math.ceil(math.log10(widest * 1e-6) - 1e-9))
    # Those of all releases spread with the root of their number; a first look needs no more. The
    # library takes the exponential of the interval.
    interval = max(1e-2, finest * 10.0, min(together * 1e-5, 500.0))
    rough = float(_pld(costs, interval).get_epsilon_for_delta(delta))
    if not math.isfinite(rough):
        return interval
    wanted = max(finest, rough * _RELATIVE_INTERVAL)
    # Powers of ten, with room for the rounding of the logarithm.
    return min(interval, 10.0 ** math.ceil(math.log10(wanted) - 1e-9))


def _pld(costs: Costs, interval: float) -> Any:
    """Return the composed privacy loss distribution, pessimistic."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed: Any = None
    unsampled = [(cost, count) for cost, count in costs if cost[0] == "gaussian"]
    if unsampled:
        composed = pld.from_gaussian_mechanism(
            _gaussian_multiplier(unsampled), value_discretization_interval=interval
        )
    for cost, count in costs:
        if cost[0] == "gaussian":
            continue
        one = _single_pld(cost, interval).self_compose(count)
        composed = one if composed is None else composed.compose(one)
    return composed


@lru_cache(maxsize=32)
def _single_pld(cost: Cost, interval: float) -> Any:
    from dp_accounting import NeighboringRelation as Neighbors
    from dp_accounting.pld import privacy_loss_distribution as pld

    kind, multiplier, rate = cost
    return pld.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=Neighbors.REPLACE_SPECIAL
        if kind == "poisson"
        else Neighbors.REPLACE_ONE,
    )
