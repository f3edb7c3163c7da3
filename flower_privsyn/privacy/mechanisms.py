"""What bounds one user, and the noise that hides them: neighbours, clipping, grid and mechanism.

Contributions, sums and noise lie on a grid, multiples of 2^-30, and are added as integers. A float
that is added to a sum is rounded to the sum's own last digit, so which floats can come out
depends on the sum, and whoever sees the last digits of a release sees through the noise (Mironov
2012, "On significance of the least significant bits for differential privacy"). Here there are no
last digits: contributions are cut to the grid before they leave a user, noise is a whole number of
steps of the same grid, and the two are added as 64-bit integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.randomness import RandomSource


class NeighboringRelation(StrEnum):
    """What may differ between two neighbouring collections of users.

    The relation is a part of every sensitivity and of every epsilon: the same noise on the same
    sum is worth different epsilons under different relations. With contributions of L2 norm at
    most ``C``, the sum over users moves by at most

    - ``C`` under ``ZERO_OUT``: the roster is public, one user's contribution becomes zero (Kairouz
      et al. 2021, "Practical and Private (Deep) Learning Without Sampling or Shuffling",
      arXiv:2103.00039, Definition 1.1). It fits a server that sees who takes part.
    - ``C`` under ``ADD_REMOVE``: one user joins or leaves.
    - ``2 C`` under ``REPLACE_ONE``: one user's data becomes any other data. The accountants of
      this package double the sensitivity themselves; a mechanism always states ``C``.
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"


GRID = 2.0**-30
"""The step of the grid."""

STEPS = 2**30
"""Steps of the grid in 1."""

LARGEST_SUM = 2.0**23
"""Sums of grid points are exact in float64 up to here, in whatever order they are added."""

LARGEST_NOISE = 2.0**28
"""Largest standard deviation of noise: fourteen of them and the largest sum fit 62 bits."""


def to_grid(key: str, values: NDArray[Any]) -> NDArray[np.int64]:
    """Return values as whole numbers of steps.

    Args:
        key: What to call the values in an error.
        values: (m,) real multiples of `GRID`, at most 2^31 in absolute value.

    Returns:
        (m,) int64.

    Raises:
        ConfigError: The values are no finite real vector, or not on the grid, or too large. The
            sentence does not say which of them: that is data.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise ConfigError(
            f"{key} must be a real vector of one dimension, "
            f"got {array.dtype} of shape {array.shape}."
        )
    vector = array.astype(np.float64)
    if not np.isfinite(vector).all():
        raise ConfigError(f"{key} must be finite, got a vector with NaN or infinite entries.")
    steps = vector * STEPS  # exact: a power of two
    if np.abs(steps).max(initial=0.0) > 2.0**61:
        raise ConfigError(f"{key} must be at most 2^31 in absolute value.")
    whole = np.rint(steps)
    if not np.array_equal(steps, whole):
        raise ConfigError(f"{key} must hold multiples of 2^-30, and holds other numbers.")
    return whole.astype(np.int64)


def from_grid(steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return steps as multiples of `GRID`.

    Beyond 2^53 steps float64 rounds to a coarser grid. It rounds the noisy total, so that is
    post-processing.

    Args:
        steps: (m,) int64.

    Returns:
        (m,) float64.
    """
    return steps.astype(np.float64) * GRID


#: Numbers worked on at once: 256 KiB of float64, which stay in the processor's cache. It decides
#: the order of additions: another number, other last bits.
COLUMNS = 2**15


def squared_norms(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Sum of squares of every row, to the same last bit whatever rows stand beside it.

    A library's reduction may add in an order that depends on how many rows there are, on where a
    row lies in memory and on where its buffers end. Here pieces of a row are added up, then the
    right half of their sum is added to its left half until one column is left: elementwise
    additions, which IEEE 754 defines to the bit.

    Args:
        rows: (k, m) real.

    Returns:
        (k,) float64; infinite or NaN where a square is.
    """
    count, columns = rows.shape
    total = np.zeros(count, dtype=np.float64)
    step = max(1, COLUMNS // max(1, columns))
    with np.errstate(over="ignore", invalid="ignore"):
        for top in range(0, count, step):
            block = rows[top : top + step].T
            sums = np.zeros(block[:COLUMNS].shape, dtype=np.float64)
            for left in range(0, columns, COLUMNS):
                squares = block[left : left + COLUMNS].astype(np.float64, order="C")
                squares *= squares
                sums[: len(squares)] += squares
            while len(sums) > 1:
                half = len(sums) // 2
                sums[:half] += sums[-half:]
                sums = sums[:-half]
            total[top : top + step] = sums.sum(axis=0)  # of one row, or of none
    return total


def clip_rows(rows: NDArray[np.float64], *, norm: float) -> None:
    """Scale every row in place to an L2 norm of at most ``norm``; direction is kept.

    A row with a NaN or an infinite entry becomes the zero row: a plain comparison would let NaN
    through, and the sum over users would then reveal that one of them sent it.

    Formal guarantee:
        With one row per user, the sum of the rows moves by at most ``norm`` in L2 when one row is
        zeroed, added or removed, and by at most ``2 norm`` when it is replaced. The bound holds for
        the resulting floats in exact arithmetic, not just for the norm as computed: a row that was
        scaled, or that lies within the rounding error of the bound, is shrunk by that error. Rows
        of whole numbers are computed exactly and are left as they are up to the bound. What becomes
        of a row depends on that row alone, to the last bit (`squared_norms`).

    Args:
        rows: (k, m), one user per row.
        norm: The bound, between 1e-30 and 1e30, in the unit of ``rows``.

    Raises:
        ConfigError: ``rows`` is no matrix of float64 or ``norm`` is out of range.
    """
    rows *= clip_factors(rows, norm=norm)


def clip_factors(rows: NDArray[np.float64], *, norm: float) -> NDArray[np.float64]:
    """What `clip_rows` multiplies each row by, between 0 and 1; (k, 1).

    Rows that are not finite, or whose squares are not, are changed in place first: no factor
    would do for them.
    """
    norm = check_number("norm", norm, ge=1e-30, le=1e30)
    if rows.ndim != 2 or rows.dtype != np.float64:
        raise ConfigError(
            f"rows must be a float64 matrix with one row per user, "
            f"got {rows.dtype} of shape {rows.shape}."
        )
    squared = squared_norms(rows)
    # A NaN or an infinity shows in the square of its row, as do entries whose squares overflow.
    odd = ~np.isfinite(squared)
    if odd.any():
        rows[odd] = _tamed(rows[odd], norm)
        squared[odd] = squared_norms(rows[odd])

    # Relative error of a sum of m rounded squares, with room to spare.
    slack = (rows.shape[1] + 8) * 2.0**-52
    over = squared * (1.0 + slack) > norm * norm
    # Sums of squared whole numbers below 2^53 carry no rounding error: such rows are not longer.
    near = over & (np.sqrt(squared) <= norm) & (squared < 2.0**53)
    if near.any():
        over[near] = (rows[near] != np.rint(rows[near])).any(axis=1)
    margin = 1.0 - slack - 2.0**-50
    scale = np.ones_like(squared)
    np.divide(margin * norm, np.sqrt(squared), out=scale, where=over)
    return scale[:, None]


def _tamed(rows: NDArray[Any], norm: float) -> NDArray[Any]:
    """Zero the rows that are not finite, and bring the others down to a length near ``norm``."""
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    peak = np.abs(rows).max(axis=1, keepdims=True)
    scaled: NDArray[Any] = (rows / np.where(peak > 0.0, peak, 1.0)) * (2.0 * norm)
    return scaled


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Adds normal noise to a sum of contributions of bounded L2 norm.

    The sum lies on the grid of `flower_privsyn.privacy.mechanisms`, the noise is rounded to it, and
    the two are added as integers. For x on the grid x + rint(N) = rint(x + N): what is released is
    post-processing of the Gaussian mechanism, so its accounting holds as it is, and every point of
    the grid can come out whatever the sum, so no release refutes one.

    Formal guarantee:
        Unit: one user, whose whole contribution to the sum has L2 norm at most ``l2_sensitivity``.
        One `release` is (epsilon, delta)-differentially private under zero-out and add-remove
        with epsilon(delta) of the Gaussian mechanism at ``noise_multiplier``, and at half of it
        under replace-one. Several releases, sampled cohorts and the two observers are the business
        of `flower_privsyn.privacy.accounting`.

    Args:
        noise_multiplier: Standard deviation of the noise divided by ``l2_sensitivity``, at least
            0. Zero adds no noise and is not private; it exists for tests and for the comparison
            "without privacy".
        l2_sensitivity: Largest L2 norm of one user's contribution, above 0, in the unit of the
            sum. The sum, never a mean: noise of this size on a mean over n users would have to be
            n times smaller.

    Raises:
        ConfigError: A value is outside its range.

    References:
        Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", appendix A.
        Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy".
    """

    name: ClassVar[str] = "gaussian"

    noise_multiplier: float
    l2_sensitivity: float

    def to_dict(self) -> dict[str, Any]:
        """The mechanism as it stands in messages and in the ledger."""
        return {
            "mechanism": self.name,
            "noise_multiplier": self.noise_multiplier,
            "l2_sensitivity": self.l2_sensitivity,
        }

    def __post_init__(self) -> None:
        multiplier = check_number("noise_multiplier", self.noise_multiplier, ge=0)
        object.__setattr__(self, "noise_multiplier", multiplier)
        sensitivity = check_number("l2_sensitivity", self.l2_sensitivity, gt=0)
        object.__setattr__(self, "l2_sensitivity", sensitivity)
        if multiplier and not GRID <= self.standard_deviation <= LARGEST_NOISE:
            raise ConfigError(
                f"noise_multiplier {multiplier:g} times l2_sensitivity {sensitivity:g} must be "
                f"between 2^-30 and 2^28, the noise that the grid can carry, got "
                f"{self.standard_deviation:g}."
            )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on each coordinate, in the unit of the sum."""
        return self.noise_multiplier * self.l2_sensitivity

    def release(self, total: NDArray[Any], *, random: RandomSource) -> NDArray[np.float64]:
        """Add noise to a sum over users.

        Args:
            total: (m,) multiples of the grid. The sum of the contributions, not divided by
                anything.
            random: The source of the noise.

        Returns:
            (m,) float64 multiples of the grid, ``total`` plus independent N(0,
            ``standard_deviation``^2) noise, rounded.

        Raises:
            ConfigError: ``total`` is no finite real vector on the grid.
        """
        return from_grid(self.release_steps(to_grid("total", total), random=random))

    def release_steps(self, total: NDArray[np.int64], *, random: RandomSource) -> NDArray[np.int64]:
        """Add noise to a sum over users in whole steps of the grid, as it is added up.

        Args:
            total: (m,) int64, as `flower_privsyn.privacy.mechanisms.to_grid` returns.
            random: The source of the noise.

        Returns:
            (m,) int64 steps.
        """
        if self.standard_deviation == 0.0:
            return total
        return total + random.rounded_normal(self.standard_deviation * STEPS, len(total))
