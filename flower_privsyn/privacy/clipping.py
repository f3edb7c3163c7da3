"""Bounding what one user can add to a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import _checks


def clip_rows(values: NDArray[Any], *, norm: float) -> NDArray[Any]:
    """Scale every row to an L2 norm of at most ``norm``; direction is kept.

    A row with a NaN or an infinite entry becomes the zero row: a plain comparison would let NaN
    through, and the sum over users would then reveal that one of them sent it.

    *Formal guarantee.* With one row per user, the sum of the rows moves by at most ``norm`` in L2
    when one row is zeroed, added or removed, and by at most ``2 norm`` when it is replaced. The
    bound holds for the returned floats in exact arithmetic, not just for the norm as computed: a
    row that was scaled, or that lies within the rounding error of the bound, is shrunk by that
    error. Rows of whole numbers are computed exactly and are left as they are up to the bound.

    Args:
        values: (k, m) real, one user per row.
        norm: The bound, between 1e-30 and 1e30, in the unit of ``values``.

    Returns:
        (k, m), a new array; float32 when ``values`` is float32 or float16, else float64.

    Raises:
        ConfigError: ``values`` is not a real matrix or ``norm`` is out of range.
    """
    norm = _checks.real("norm", norm, "between 1e-30 and 1e30", low=1e-30, high=1e30)
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

    broken = ~np.isfinite(clipped).all(axis=1)
    clipped[broken] = 0.0
    # Bring huge rows down first: squares above 1e308 would overflow to infinity.
    huge = np.abs(clipped).max(axis=1).astype(np.float64) > 1e100
    if huge.any():
        peak = np.abs(clipped[huge]).max(axis=1, keepdims=True)
        clipped[huge] = (clipped[huge] / peak) * (2.0 * norm)

    # Relative error of a sum of m rounded squares, with room to spare.
    slack = (array.shape[1] + 8) * 2.0**-52
    squared = _squared_norms(clipped)
    over = squared * (1.0 + slack) > norm * norm
    over[over] = ~_whole_and_within(clipped[over], squared[over], norm)
    if over.any():
        margin = 1.0 - slack - 4.0 * float(np.finfo(dtype).eps)
        factor = margin * norm / np.sqrt(squared[over])
        clipped[over] = clipped[over].astype(np.float64) * factor[:, None]
    return clipped


def _squared_norms(rows: NDArray[Any]) -> NDArray[np.float64]:
    squared: NDArray[np.float64] = np.einsum("km,km->k", rows, rows, dtype=np.float64)
    return squared


def _whole_and_within(
    rows: NDArray[Any], squared: NDArray[np.float64], norm: float
) -> NDArray[np.bool_]:
    # Sums of squared whole numbers below 2^53 carry no rounding error.
    within = (np.sqrt(squared) <= norm) & (squared < 2.0**53)
    within[within] = (rows[within] == np.rint(rows[within])).all(axis=1)
    return within
