"""Sums along rows in one fixed order, so that a row's result is that row's alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Columns folded at once. It decides the order of additions: another number, other last bits.
COLUMNS = 2**16
#: Numbers worked on at once: 1 MiB of float64, which stays in the processor's cache.
_CACHED = 2**17


def squared_norms(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Sum of squares of every row, to the same last bit whatever rows stand beside it.

    A library's reduction may add in an order that depends on how many rows there are, on where a
    row lies in memory and on where its buffers end. Here the right half of a row is added to its
    left half until one column is left: elementwise additions, which IEEE 754 defines to the bit.

    Args:
        rows: (k, m) real.

    Returns:
        (k,) float64; infinite or NaN where a square is.
    """
    count, columns = rows.shape
    total = np.zeros(count, dtype=np.float64)
    step = max(1, _CACHED // max(1, min(columns, COLUMNS)))
    with np.errstate(over="ignore", invalid="ignore"):
        for top in range(0, count, step):
            for left in range(0, columns, COLUMNS):
                part = rows[top : top + step, left : left + COLUMNS].astype(np.float64)
                total[top : top + step] += fold_squares(part)
    return total


def fold_squares(part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of squares of every row of a piece of rows, in place: what was in it is lost.

    Args:
        part: (k, w) with w at most `COLUMNS`, at least 1.

    Returns:
        (k,) a view of its first column.
    """
    part *= part
    width = part.shape[1]
    while width > 1:
        half = width // 2
        part[:, :half] += part[:, width - half : width]
        width -= half
    return part[:, 0]
