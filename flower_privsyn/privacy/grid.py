"""The grid that contributions, sums and noise lie on: multiples of 2^-30, added as integers.

A float that is added to a sum is rounded to the sum's own last digit, so which floats can come out
depends on the sum, and whoever sees the last digits of a release sees through the noise (Mironov
2012, "On significance of the least significant bits for differential privacy"). Here there are no
last digits: contributions are cut to the grid before they leave a user, noise is a whole number of
steps of the same grid, and the two are added as 64-bit integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ConfigError

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
