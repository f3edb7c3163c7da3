"""Which candidate lies nearest to a record, fast: votes are what a round consists of.

What is found is the plain thing, the largest s of `nearest_candidates` added up in float64, for any
records, and tests compare with that. How, nobody has to read who does not change it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.queries.once_per_array import all_finite, once_per_array
from flower_privsyn.queries.query import Float32Array, Float64Array, IntArray

#: Elements of one block of the similarity matrix: 8 MiB of float32.
_BLOCK_ELEMENTS = 2**21


def block_rows(num_candidates: int) -> int:
    """Records that one block of the similarity matrix holds."""
    return max(1, _BLOCK_ELEMENTS // num_candidates)


def nearest_candidates(records: Float32Array, candidates: Float32Array) -> IntArray:
    """Index of the candidate at the smallest Euclidean distance from each record.

    argmin |r - c|^2 is argmax s(r, c) with

        s(r, c) = c.(r - c / 2) = (|r|^2 - |r - c|^2) / 2,

    which has no |r|^2 in which the differences between short candidates would drown. The index that
    is returned is the lowest at which s, added up in float64 from left to right, is largest.

    Formal guarantee:
        What is returned for a record is a function of that record and the candidates alone,
        whatever records stand beside it, whatever the block size, the BLAS, its kernels or the
        number of threads: s is computed for one record and one candidate at a time, in one order.

    One blocked float32 product, whose last bits do depend on all of these, only chooses which
    candidates are looked at in float64. It cannot miss a winner: product and s are each off from
    the true value by a proven bound (`_tolerance`), and every candidate within twice their sum of
    the product's best is looked at.

    Args:
        records: (n, d) float32, finite.
        candidates: (m, d) float32, finite, m >= 1.

    Returns:
        (n,) int64 in `range(m)`.

    Raises:
        ValueError: there is no candidate, the dimensions differ, or a candidate is not finite.
    """
    if candidates.ndim != 2 or len(candidates) == 0:
        raise ValueError(f"candidates must be (m, d) with m >= 1, got {candidates.shape}")
    if records.ndim != 2 or records.shape[1] != candidates.shape[1]:
        raise ValueError(
            f"records {records.shape} and candidates {candidates.shape} differ in dimension"
        )
    if not all_finite(candidates):
        raise ValueError("candidates must be finite")
    n, dimension = records.shape
    m = len(candidates)
    right, longest = _right_side(candidates)
    nearest = np.empty(n, dtype=np.int64)
    rows = block_rows(m)
    left = np.ones((min(rows, n), dimension + 1), dtype=np.float32)
    scores = np.empty((min(rows, n), m), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            block, product = left[: stop - start], scores[: stop - start]
            block[:, :-1] = records[start:stop]
            np.matmul(block, right, out=product)
            lengths = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
            tolerance = _tolerance(lengths, longest, dimension)
            nearest[start:stop] = _best_with_ties(
                product, tolerance, records[start:stop], candidates
            )
    return nearest


def _tolerance(lengths: Float64Array, longest: float, dimension: int) -> Float64Array:
    """How far two sums of a float32 product may be apart although their candidates tie in s.

    Args:
        lengths: (n,) of the records with a 1 behind them.
        longest: length of the longest candidate.
        dimension: numbers in a record, at most 2^20.
    """
    # The product adds up d + 1 terms in float32, u = 2^-24, in any order, fused or not, and its
    # last column is rounded before: off by ((d + 1) u / (1 - (d + 1) u) + u) B at most, with
    # B = |(r, 1)| |(c, |c|^2 / 2)| (Higham, "Accuracy and Stability of Numerical Algorithms", 3.1).
    # s is off by (d + 2) 2^-53 |c| (|r| + |c| / 2), below 2^-28 of that. Twice the sum of both
    # separates a winner from whatever is not looked at; 4 in place of 2 covers the rest.
    unit = (dimension + 3) * 2.0**-24 * 4.0
    bound = lengths * math.hypot(longest, 0.5 * longest**2)
    # Below 2^-126 a number or a product may be flushed to 0, on one way and not on the other.
    underflow = (dimension + 3) * 2.0**-123 * (lengths + longest)
    # Beyond float32 a partial sum may overflow although the product does not, and which
    # one does depends on the other rows of the block: there only float64 decides.
    return np.where(bound < 1e38, unit * bound + underflow, np.inf)


@once_per_array
def _right_side(candidates: npt.NDArray[Any]) -> tuple[Float32Array, float]:
    """What records, with a 1 behind them, are multiplied by; and the longest candidate's length.

    argmin |r - c|^2 = argmax r.c - |c|^2 / 2; the second term rides along as one more column.
    """
    m, dimension = candidates.shape
    squared_norms = np.einsum("md,md->m", candidates, candidates, dtype=np.float64)
    right = np.empty((dimension + 1, m), dtype=np.float32)
    right[:-1] = candidates.T
    with np.errstate(over="ignore"):  # beyond float32 the second look decides
        right[-1] = -0.5 * squared_norms
    return right, math.sqrt(float(squared_norms.max()))


def _best_with_ties(
    scores: Float32Array, tolerance: Float64Array, records: Float32Array, candidates: Float32Array
) -> IntArray:
    """Row-wise argmax of `scores` (overwritten), near ties decided in float64."""
    rows = np.arange(len(scores))
    best: IntArray = scores.argmax(axis=1)
    top = scores[rows, best].astype(np.float64)
    # The runner-up tells whether the row needs a second look; a masked maximum costs one more
    # pass over a block that is still in cache.
    scores[rows, best] = -np.inf
    second = scores.max(axis=1).astype(np.float64)
    doubtful = ~(top - second > tolerance)  # true for NaN and Inf as well
    if not doubtful.any():
        return best
    scores[rows, best] = top
    for row in np.flatnonzero(doubtful):
        if np.isfinite(top[row]) and np.isfinite(tolerance[row]):
            close = np.flatnonzero(~(scores[row] < top[row] - tolerance[row]))
        else:
            close = np.arange(len(candidates))
        best[row] = _by_float64(records[row], candidates, close)
    return best


def _by_float64(record: Float32Array, candidates: Float32Array, close: IntArray) -> int:
    """The nearest of some candidates, ascending, to one record: the largest s, lowest index."""
    points = candidates[close].astype(np.float64)
    points *= record - 0.5 * points
    # Added up from left to right, so that no s depends on how many are close.
    return int(close[np.argmax(np.add.accumulate(points, axis=-1)[:, -1])])
