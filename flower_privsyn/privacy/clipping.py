"""Bounding what one user can add to a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from flower_privsyn.checks import check_number
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.rows import squared_norms


def clip_rows(values: NDArray[Any], *, norm: float) -> NDArray[Any]:
    """Scale every row to an L2 norm of at most ``norm``; direction is kept.

    A row with a NaN or an infinite entry becomes the zero row: a plain comparison would let NaN
    through, and the sum over users would then reveal that one of them sent it.

    Formal guarantee:
        With one row per user, the sum of the rows moves by at most ``norm`` in L2 when one row is
        zeroed, added or removed, and by at most ``2 norm`` when it is replaced. The bound holds for
        the returned floats in exact arithmetic, not just for the norm as computed: a row that was
        scaled, or that lies within the rounding error of the bound, is shrunk by that error. Rows
        of whole numbers are computed exactly and are left as they are up to the bound. What becomes
        of a row depends on that row alone, to the last bit (`squared_norms`).

    Args:
        values: (k, m) real, one user per row.
        norm: The bound, between 1e-30 and 1e30, in the unit of ``values``.

    Returns:
        (k, m), a new array; float32 when ``values`` is float32 or float16, else float64.

    Raises:
        ConfigError: ``values`` is not a real matrix or ``norm`` is out of range.
    """
    norm = check_number("norm", norm, ge=1e-30, le=1e30)
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise ConfigError(
            f"values must be a real matrix with one row per user, "
            f"got {array.dtype} of shape {array.shape}."
        )
    dtype = np.float32 if array.dtype in (np.float32, np.float16) else np.float64
    clipped = array.astype(dtype)  # always a copy
    if clipped.size == 0:
        return clipped

    squared = squared_norms(clipped)
    # A NaN or an infinity shows in the square of its row, as do entries whose squares overflow.
    odd = ~np.isfinite(squared)
    if odd.any():
        clipped[odd] = _tamed(clipped[odd], norm)
        squared[odd] = squared_norms(clipped[odd])

    over, near, factors = clipping_of(squared, columns=array.shape[1], norm=norm, dtype=dtype)
    if near.any():
        over[near] = (clipped[near] != np.rint(clipped[near])).any(axis=1)
    if over.any():
        factor: NDArray[Any] = factors[over]
        if over.all():  # a model's update is one wide row: in place it takes half the time
            np.multiply(clipped, factor[:, None], out=clipped, casting="same_kind")
        else:
            clipped[over] = clipped[over] * factor[:, None]
    return clipped


def clipping_of(
    squared: NDArray[np.float64], *, columns: int, norm: float, dtype: DTypeLike
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64]]:
    """Which rows are too long, and what brings them within a bound.

    Args:
        squared: (k,) by `squared_norms`, finite.
        columns: Numbers in a row.
        norm: The bound, > 0.
        dtype: In which rows are multiplied: float32 or float64.

    Returns:
        (k,) whether a row is longer than the bound, or so near that rounding may hide it; (k,)
        whether it is only that near, in which case a row of whole numbers is not longer; and (k,)
        what to multiply it with, 1 where it is not longer.
    """
    # Relative error of a sum of m rounded squares, with room to spare.
    slack = (columns + 8) * 2.0**-52
    over = squared * (1.0 + slack) > norm * norm
    # Sums of squared whole numbers below 2^53 carry no rounding error.
    near = over & (np.sqrt(squared) <= norm) & (squared < 2.0**53)
    margin = 1.0 - slack - 4.0 * float(np.finfo(dtype).eps)
    factors = np.where(over, margin * norm / np.sqrt(np.where(over, squared, 1.0)), 1.0)
    return over, near, factors


def _tamed(rows: NDArray[Any], norm: float) -> NDArray[Any]:
    """Zero the rows that are not finite, and bring the others down to a length near ``norm``."""
    rows[~np.isfinite(rows).all(axis=1)] = 0.0
    peak = np.abs(rows).max(axis=1, keepdims=True)
    scaled: NDArray[Any] = (rows / np.where(peak > 0.0, peak, 1.0)) * (2.0 * norm)
    return scaled
