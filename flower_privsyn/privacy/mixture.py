"""Privacy loss of a normal whose shift is drawn: what a user with several coins costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Numbers worked on at a time.
_BLOCK = 2**20
# The slope of what is inverted lies between the smallest shift and the largest one: Newton's steps
# meet the rounding error long before.
_STEPS = 60


def mixture_loss_distribution(
    standard_deviation: float, coins: int, rate: float, *, interval: float
) -> Any:
    """The privacy loss distribution of N(J, s^2), J ~ Bin(``coins``, ``rate``), against N(0, s^2).

    ``dp_accounting``'s mixture of Gaussians by its own method (connect the dots, pessimistic),
    with the inverse of the privacy loss by Newton's method for all losses at once: its bisection
    takes a hundred times as long.

    Args:
        standard_deviation: s, above 0.
        coins: At least 1.
        rate: In (0, 1).
        interval: Of the discretisation.

    References:
        Choquette-Choo et al. 2024, "Privacy Amplification for Matrix Mechanisms", section 4.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from scipy.stats import binom

    adjacency = privacy_loss_mechanism.AdjacencyType
    heads = binom.pmf(np.arange(coins + 1), coins, rate)
    present = heads > 0.0  # none of the others would be met in the age of the universe
    shifts, heads = np.flatnonzero(present).astype(np.float64), heads[present]

    class Loss(privacy_loss_mechanism.MixtureGaussianPrivacyLoss):  # type: ignore[misc]
        def inverse_privacy_losses(
            self, privacy_losses: NDArray[np.float64], precision: float = 1e-6
        ) -> NDArray[np.float64]:
            """Where each loss is met; see the class above, which rounds to ``precision``."""
            del precision
            losses = np.asarray(privacy_losses, dtype=np.float64)
            # With "remove" the shift is negative, with "add" the loss is: both mirror the scale.
            if self.adjacency_type is adjacency.REMOVE:
                return -_where(losses, shifts, heads, standard_deviation)
            return _where(-losses, shifts, heads, standard_deviation)

    def one(kind: Any) -> Any:
        loss = Loss(standard_deviation, shifts, heads, adjacency_type=kind)
        bounds = loss.connect_dots_bounds()
        low = math.floor(bounds.epsilon_lower / interval)
        high = math.ceil(bounds.epsilon_upper / interval)
        deltas = loss.get_delta_for_epsilon(np.arange(low, high + 1) * interval)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)

    return PrivacyLossDistribution(one(adjacency.REMOVE), one(adjacency.ADD))


def _where(
    values: NDArray[np.float64],
    shifts: NDArray[np.float64],
    heads: NDArray[np.float64],
    standard_deviation: float,
) -> NDArray[np.float64]:
    """(n,) x with log sum_j heads_j exp((shifts_j x - shifts_j^2 / 2) / s^2) = values.

    Without the constant term of shift 0 the left side is convex in x, with a slope that is bounded
    from both sides; beginning to the right of the solution, Newton's method goes down to it.
    """
    variance = standard_deviation**2
    shifted = shifts > 0.0
    constant = float(heads[~shifted].sum())
    slopes = shifts[shifted] / variance  # (k,)
    offsets = np.log(heads[shifted]) - 0.5 * shifts[shifted] * slopes  # (k,)
    result = np.empty_like(values)
    rows = max(1, _BLOCK // len(slopes))
    for start in range(0, len(values), rows):
        with np.errstate(divide="ignore", over="ignore"):
            part = values[start : start + rows]
            target = part + np.log1p(-np.minimum(constant * np.exp(-part), 1.0))
        met = np.isfinite(target)
        # Each term alone is below the sum: where it reaches the target, the sum has.
        x = np.full(len(part), -np.inf)
        x[met] = ((target[met, None] - offsets) / slopes).min(axis=1)
        for _ in range(_STEPS):
            terms = offsets + slopes * x[met, None]
            top = terms.max(axis=1, keepdims=True)
            weights = np.exp(terms - top)
            sums = weights.sum(axis=1)
            step = (top[:, 0] + np.log(sums) - target[met]) * sums / (weights @ slopes)
            x[met] -= step
            if not np.any(np.abs(step) > 1e-13 * (standard_deviation + np.abs(x[met]))):
                break
        result[start : start + rows] = x
    return result
