"""What an attacker can certainly do: exact lower bounds on epsilon of one-dimensional mechanisms.

Independent of the accountants under test: only normal distribution functions and a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import signal, stats

Mixture = Sequence[tuple[float, float]]  # (weight, mean) of unit normals


def _masses(mixture: Mixture, edges: np.ndarray) -> np.ndarray:
    # Upper and lower tails are both kept accurate.
    middle = 0.5 * (edges[:-1] + edges[1:])
    total = np.zeros(edges.size - 1)
    for weight, mean in mixture:
        below = stats.norm.cdf(edges - mean)
        above = stats.norm.sf(edges - mean)
        total += weight * np.where(middle > mean, above[:-1] - above[1:], below[1:] - below[:-1])
    return total


def _composed_loss(
    one: Mixture, other: Mixture, rounds: int, interval: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return privacy losses and their masses under ``one``, rounded down, after ``rounds``."""
    edges = np.linspace(-12.0, 14.0, 40_001)
    p, q = _masses(one, edges), _masses(other, edges)
    kept = (p > 1e-30) & (q > 0.0)
    loss = np.floor(np.log(p[kept] / q[kept]) / interval).astype(int)
    lowest = loss.min()
    pmf = np.bincount(loss - lowest, weights=p[kept])
    composed, start = np.ones(1), 0
    for _ in range(rounds):
        composed = np.maximum(signal.fftconvolve(composed, pmf), 0.0)
        start += lowest
        # Convolution by FFT has an absolute error; what lies below it is not counted.
        composed[composed < 1e-13] = 0.0
        seen = np.flatnonzero(composed)
        composed, start = composed[seen[0] : seen[-1] + 1], start + seen[0]
    return (start + np.arange(composed.size)) * interval, composed


def epsilon_lower_bound(
    one: Mixture, other: Mixture, *, rounds: int, delta: float, interval: float = 1e-3
) -> float:
    """Return an epsilon below the true one at ``delta``, the larger over both orders.

    The output is put into bins (which only loses information), the privacy loss of each bin is
    rounded down, and the losses of the rounds are added up.
    """
    best = 0.0
    for first, second in ((one, other), (other, one)):
        losses, masses = _composed_loss(first, second, rounds, interval)
        low, high = 0.0, max(0.0, float(losses[-1]))
        for _ in range(30):
            middle = 0.5 * (low + high)
            above = losses > middle
            reached = float(masses[above] @ -np.expm1(middle - losses[above]))
            low, high = (middle, high) if reached > delta else (low, middle)
        best = max(best, low)
    return best
