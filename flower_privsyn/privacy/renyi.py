"""Renyi divergences of releases, at the orders of ``dp_accounting``.

For Poisson sampling the values at fractional orders are checked against those at whole ones, and
replaced by a bound where they fail: the series behind them breaks down for large noise, in
``dp_accounting`` towards epsilons that are too large and in other libraries towards negative ones.

Fixed-size cohorts use the bound for sampling without replacement under replace-one at half the
noise multiplier. ``dp_accounting`` does not double the sensitivity under that relation by itself.
Zero-out is the special case in which the replaced value is zero.

References:
    Mironov 2017, "Renyi Differential Privacy". Mironov, Talwar and Zhang 2019, "Renyi Differential
    Privacy of the Sampled Gaussian Mechanism". Wang, Balle and Kasiviswanathan 2019, "Subsampled
    Renyi Differential Privacy and Analytical Moments Accountant", theorem 27. Canonne, Kamath and
    Steinke 2020, "The Discrete Gaussian for Differential Privacy", proposition 12, for the
    conversion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ConfigError

# What a release costs, with everything that costs the same made equal: (kind, effective noise
# multiplier, rate). The kinds are "gaussian", "poisson", "poisson-replace" and "fixed".
Cost: TypeAlias = tuple[str, float, float]
Costs: TypeAlias = tuple[tuple[Cost, int], ...]


@lru_cache(maxsize=4096)
def epsilon(costs: Costs, delta: float) -> float:
    """Return the epsilon of releases at a delta.

    Args:
        costs: What they cost, at least one.
        delta: Between 0 and 1, exclusive.

    Raises:
        ConfigError: One of them has no bound here.
    """
    with _quiet():
        from dp_accounting.rdp import rdp_privacy_accountant as rdp

        orders, curve = _curve(costs)
        return float(rdp.compute_epsilon(orders, curve, delta)[0])


def _curve(costs: Costs) -> tuple[Any, Any]:
    """Return the Renyi orders and the composed divergence at each that is trustworthy."""
    orders: Any = None
    curve: Any = None
    for cost, count in costs:
        orders, single = _single_curve(cost)
        curve = count * single if curve is None else curve + count * single
    kept = np.isfinite(curve)
    if not kept.any():
        return np.array([2.0]), np.array([math.inf])
    return orders[kept], curve[kept]


@lru_cache(maxsize=256)
def _single_curve(cost: Cost) -> tuple[Any, Any]:
    import dp_accounting
    from dp_accounting import NeighboringRelation as Neighbors
    from dp_accounting.rdp import RdpAccountant

    kind, multiplier, rate = cost
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    neighbors, event = Neighbors.REPLACE_SPECIAL, gaussian
    if kind == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    elif kind == "fixed":
        # Only the quotient of the two sizes matters; it is rebuilt from the exact fraction.
        size, population = _fraction(rate)
        neighbors = Neighbors.REPLACE_ONE
        event = dp_accounting.SampledWithoutReplacementDpEvent(population, size, gaussian)
    elif kind == "poisson-replace":
        raise ConfigError(
            'accountant must be "pld" for Poisson sampling under the relation "replace-one", '
            'got "rdp".'
        )
    backend = RdpAccountant(neighboring_relation=neighbors).compose(event)
    # The library offers no public way to add curves of different sampling methods.
    orders = np.asarray(backend._orders, dtype=np.float64)
    curve = np.asarray(backend._rdp, dtype=np.float64)
    if kind == "poisson":
        curve = _checked_between_integers(orders, curve)
    return orders, curve


def _checked_between_integers(
    orders: NDArray[np.float64], curve: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Replace what the library computes at fractional orders where it cannot be right.

    At whole orders the divergence of the sampled Gaussian is a finite sum of positive terms. In
    between it is a series of alternating ones, which loses all its digits when the noise is large
    or the rate moderate; the result is then anything, including too small. The logarithm of the
    moment, (order - 1) times the divergence, is convex and zero at 1. So between two whole orders
    it lies below their chord and above the chords next to it, continued. Where one value between
    two whole orders does not, all of them give way to the chord, which is always a bound.
    """
    moments = (orders - 1.0) * curve
    at = {1: 0.0}
    at.update({int(o): float(m) for o, m in zip(orders, moments, strict=True) if o == int(o)})
    checked = moments.copy()
    for low in range(1, int(orders[orders != np.rint(orders)].max()) + 1):
        inside = (orders > low) & (orders < low + 1)
        share = orders[inside] - low
        rise = at[low + 1] - at[low]
        chord = at[low] + share * rise
        floor = at[low + 1] - (1.0 - share) * (at[low + 2] - at[low + 1])
        if low > 1:
            floor = np.maximum(floor, at[low] + share * (at[low] - at[low - 1]))
        room = 1e-9 * max(rise, 0.0)
        # Written so that NaN counts as wrong.
        right = (moments[inside] >= floor - room) & (moments[inside] <= chord + room)
        checked[inside] = moments[inside] if right.all() else chord
    return checked / (orders - 1.0)


def _fraction(rate: float) -> tuple[int, int]:
    numerator, denominator = rate.as_integer_ratio()
    return numerator, denominator


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings about Renyi orders that did not converge.

    They are left out of the minimum, which costs nothing but the warning.
    """
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
