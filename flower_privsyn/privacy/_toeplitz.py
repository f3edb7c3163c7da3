"""Power series behind Toeplitz matrices, and the search for the best ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number, check_whole

Vector: TypeAlias = NDArray[np.float64]

_MOST_BUFFERS = 4
#: A further buffer must gain this much, relative, where their number is free.
_WORTH_A_BUFFER = 1e-3
_LARGEST_DECAY = 1.0 - 1e-9


def impulse(length: int) -> Vector:
    """Return 1, 0, 0, ..."""
    first = np.zeros(length)
    first[0] = 1.0
    return first


def filtered(above: Vector, below: Vector, numerator: Vector) -> Vector:
    """Return the first coefficients of the power series ``numerator`` ``above`` / ``below``.

    Args:
        above: Coefficients of a polynomial.
        below: Coefficients of a polynomial that starts with 1.
        numerator: (T,) the coefficients of a power series.

    Returns:
        (T,).
    """
    from scipy.signal import lfilter

    return np.asarray(lfilter(above, below, numerator), dtype=np.float64)


def momentum_workload(rounds: int, momentum: float) -> Vector:
    """Return the weights of a round in the model of that round, of the next one, and so on.

    A server that keeps v = momentum v + x and adds v to the model has 1 + momentum + ... +
    momentum^j of a round's sum in the model j rounds later.

    Args:
        rounds: At least 1.
        momentum: In [0, 1); 0 gives the plain running total.

    Returns:
        (rounds,).

    Raises:
        ConfigError: A value is out of range.
    """
    rounds = check_whole("rounds", rounds, ge=1)
    momentum = check_number("momentum", momentum, ge=0, lt=1)
    return np.cumsum(momentum ** np.arange(rounds))


def square_root_series(length: int) -> Vector:
    """Return the first coefficients of 1 / sqrt(1 - x)."""
    steps = np.arange(1, length)
    return np.concatenate(([1.0], np.cumprod((2.0 * steps - 1.0) / (2.0 * steps))))


def mean_square(total: Vector) -> float:
    """Return the mean over rounds of the variance of a total.

    Args:
        total: (T,) the weights in a round's total of the innovation of that round, of the one
            before, and so on.
    """
    rounds = len(total)
    return float(np.arange(rounds, 0, -1) @ total**2) / rounds


def buffer_series(rounds: int, scales: Vector, decays: Vector) -> Vector:
    """Return 1 and the sums over the buffers of scale x decay^i, (rounds,)."""
    powers = decays[:, None] ** np.arange(rounds - 1)  # (buffers, rounds - 1)
    return np.concatenate(([1.0], scales @ powers))


def inverse_of_buffers(scales: Vector, decays: Vector) -> tuple[Vector, Vector]:
    """Return the polynomials (above, below) of 1 / c, for c the series of the buffers."""
    above = np.ones(1)
    for decay in decays:
        above = np.convolve(above, [1.0, -decay])
    below = above.copy()
    for index, scale in enumerate(scales):
        others = np.ones(1)
        for decay in np.delete(decays, index):
            others = np.convolve(others, [1.0, -decay])
        below[1:] += scale * others
    return above, below


def optimal_bands(workload: Vector, bands: int) -> tuple[float, ...]:
    """Return 1, c_1, ... with the least mean square noise times squared sensitivity.

    Args:
        workload: (T,) the weights of the running total.
        bands: Between 1 and T. Columns that many rounds apart do not overlap, so the squared
            sensitivity is in proportion to the squared norm of a column.
    """
    if bands == 1:
        return (1.0,)

    def loss(free: Vector) -> float:
        coefficients = np.concatenate(([1.0], free))
        total = filtered(np.ones(1), coefficients, workload)
        return math.log(mean_square(total) * float(coefficients @ coefficients))

    found, _ = _minimise(loss, square_root_series(bands)[1:])
    return (1.0, *found.tolist())


def optimal_buffers(
    workload: Vector, min_separation: int, buffers: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return scales and decays with the least mean square noise times squared sensitivity.

    Args:
        workload: (T,) the weights of the running total.
        min_separation: Smallest difference of two rounds of one user.
        buffers: How many, or None for as many as are worth it, at most four.
    """
    if buffers is not None:
        _, scales, decays = _best_of(workload, min_separation, buffers)
        return scales, decays
    value, scales, decays = _best_of(workload, min_separation, 0)
    for number in range(1, _MOST_BUFFERS + 1):
        further = _best_of(workload, min_separation, number)
        # The loss is the logarithm of a variance: twice that of a standard deviation.
        if further[0] > value - 2.0 * _WORTH_A_BUFFER:
            break
        value, scales, decays = further
    return scales, decays


def _best_of(
    workload: Vector, min_separation: int, buffers: int
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return (loss, scales, decays) of the best local minimum from several starts."""

    def loss(free: Vector) -> float:
        return _buffer_loss(*_buffers_from(free), workload, min_separation)

    if not buffers:
        return _buffer_loss(np.zeros(0), np.zeros(0), workload, min_separation), (), ()
    best: tuple[float, Vector] | None = None
    rounds = len(workload)
    for longest in (rounds, max(2.0, math.sqrt(rounds)), 4.0):
        # Decays over spans between two rounds and the longest, evenly in logarithms.
        spans = np.geomspace(longest, 2.0, buffers) if buffers > 1 else np.array([longest])
        decays = 1.0 - 1.0 / np.maximum(spans, 1.5)
        start = np.concatenate((np.log(decays / (1.0 - decays)), np.zeros(buffers), [0.0]))
        found, value = _minimise(loss, start)
        if best is None or value < best[0]:
            best = value, found
    value, found = best if best is not None else (math.inf, np.zeros(0))
    scales, decays = _buffers_from(found)
    order = np.argsort(-decays)
    return value, tuple(scales[order].tolist()), tuple(decays[order].tolist())


def _buffers_from(free: Vector) -> tuple[Vector, Vector]:
    """Return scales and decays from unbounded numbers.

    Args:
        free: (2 d + 1,) logits of the d decays, d logits of weights, the logit of the sum.
    """
    count = len(free) // 2
    decays = _LARGEST_DECAY / (1.0 + np.exp(-free[:count]))
    weights = np.exp(free[count : 2 * count] - free[count : 2 * count].max())
    whole = 1.0 / (1.0 + math.exp(-float(free[-1])))
    # A hair below, so that the scales never exceed 1 in sum by their rounding.
    return (1.0 - 1e-12) * whole * weights / weights.sum(), decays


def _buffer_loss(scales: Vector, decays: Vector, workload: Vector, min_separation: int) -> float:
    """Return log(mean square noise x squared sensitivity)."""
    rounds = len(workload)
    total = filtered(*inverse_of_buffers(scales, decays), workload)
    series, encoded = buffer_series(rounds, scales, decays), np.zeros(rounds)
    for first in range(0, rounds, min_separation):
        encoded[first:] += series[: rounds - first]
    return math.log(mean_square(total) * float(encoded @ encoded))


def _minimise(loss: Callable[[Vector], float], start: Vector) -> tuple[Vector, float]:
    """Return the place and the value of a local minimum."""
    from scipy.optimize import minimize

    with np.errstate(over="ignore"):
        found = minimize(
            loss,
            start,
            method="L-BFGS-B",
            bounds=[(-30.0, 30.0)] * len(start),
            options={"maxiter": 1000, "maxfun": 10**6, "ftol": 1e-13, "gtol": 1e-9},
        )
    return np.asarray(found.x, dtype=np.float64), float(found.fun)
