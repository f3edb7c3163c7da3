"""Norms, products and means of one user to the same bits whatever stands beside that user.

A library's product adds up in an order that depends on how many rows it is given, on which of them
a row is, on the number of threads and on the processor. The last bit of one user's answer would
then depend on who shares a node with them; clipped and put on the grid, it becomes a step of the
grid, and the sum moves by more than the user who joined. Here nothing is left to round. Each
factor is rounded to integers so small that every partial sum is an integer below 2^53, which
float64 holds, and an order of exact additions has no influence.

The idea is that of Ozaki, Ogita, Oishi, Rump, "Error-free transformations of matrix multiplication
by using fast routines of matrix multiplication" (Numerical Algorithms, 2012), its first term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.privacy import squared_norms
from flower_privsyn.queries.arrays import Float32Array, Float64Array, IntArray
from flower_privsyn.queries.query import Cohort

#: Bits kept of a row's length on the left, and of the longest column's on the right. By
#: Cauchy-Schwarz no partial sum of a product exceeds the product of the lengths, 2^53.
_LEFT_BITS = 27
_RIGHT_BITS = 26


@dataclass(frozen=True)
class RightFactor:
    """The right side of a product, prepared once for many left sides.

    Attributes:
        integers: (d, k) whole numbers in float64, every column shorter than 2^26.
        exponent: the factor is `integers` times 2^(exponent - 26), up to rounding.
    """

    integers: Float64Array
    exponent: int

    @classmethod
    def of(cls, columns: npt.NDArray[Any]) -> RightFactor:
        """Prepare a right side.

        Args:
            columns: (k, d) real, finite: the columns of the factor, one a row.
        """
        exponent = int(_exponents(columns).max(initial=-1000))
        scaled = columns.astype(np.float64) * 2.0 ** (_RIGHT_BITS - exponent)
        np.rint(scaled, out=scaled)
        return cls(integers=np.ascontiguousarray(scaled.T), exponent=exponent)


def exact_product(rows: npt.NDArray[Any], right: RightFactor) -> Float64Array:
    """Rows times a factor; every row's result depends on that row and the factor alone.

    The rows are rounded to 2^-27 of their length, the factor to 2^-26 of its longest column, and
    the product of these is exact. It is off by sqrt(d) 2^-25 of both lengths at most and by 1e-8 as
    a rule, less than a float32 product. All of this holds for every IEEE 754 arithmetic, with or
    without fused additions.

    Args:
        rows: (n, d) real, finite, of float32's range, d at most 2^16.
        right: of a (d, k) factor.

    Returns:
        (n, k) float64.
    """
    exponents = _exponents(rows)
    scaled = rows * np.ldexp(1.0, _LEFT_BITS - exponents)[:, None]
    np.rint(scaled, out=scaled)
    result: Float64Array = scaled @ right.integers
    result *= np.ldexp(1.0, exponents + right.exponent - _LEFT_BITS - _RIGHT_BITS)[:, None]
    return result


def _exponents(rows: npt.NDArray[Any]) -> IntArray:
    """For each row the least e with |row| < 2^e, -200 or more."""
    # Rounding to integers makes a row longer by sqrt(d) / 2 <= 2^7 of them: 2^-18 of the bound.
    lengths = np.sqrt(squared_norms(rows)) * (1.0 + 2.0**-17)
    exponents: IntArray = np.maximum(np.frexp(lengths)[1], -200).astype(np.int64)
    return exponents


#: Records transformed at a time.
_BLOCK_RECORDS = 1024


def user_means(
    cohort: Cohort,
    transform: Callable[[Float32Array], npt.NDArray[Any]],
    *,
    width: int,
    block_numbers: int | None = None,
) -> Float64Array:
    """Mean of `transform` over each user's records; zero for a user without records.

    Args:
        cohort: the users.
        transform: maps (k, d) float32 records to (k, width) rows, row by row.
        width: of the transformed rows.
        block_numbers: most numbers of the rows that are made at a time, where they are wide, but
            for one row. None for 1,024 rows, which are the most in any case.

    Returns:
        (num_users, width) float64: each user's records added up one after another, so that a
        user's mean has the same bits whoever else is in the cohort.
    """
    means = np.zeros((cohort.num_users, width), dtype=np.float64)
    most = _BLOCK_RECORDS
    if block_numbers is not None:
        most = max(1, min(most, block_numbers // width))
    for start, stop in _blocks(cohort.owners, most):
        owners = cohort.owners[start:stop]
        rows = transform(cohort.records[start:stop])
        rows = rows.astype(np.float64, copy=False)
        first = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
        counts = np.diff(np.r_[first, len(owners)])
        # Elementwise additions: a library's reduction chooses its own order. A user with more
        # records than a block is met once in each, cut after so many of their own.
        for rank in range(int(counts.max())):
            having = first[counts > rank]
            means[owners[having]] += rows[having + rank]
    counts = np.bincount(cohort.owners, minlength=cohort.num_users)
    means /= np.maximum(counts, 1)[:, None]
    return means


def _blocks(owners: IntArray, most: int) -> Iterator[tuple[int, int]]:
    """First record and end of consecutive blocks; only a user larger than a block is cut."""
    start = 0
    while start < len(owners):
        stop = min(start + most, len(owners))
        if stop < len(owners) and owners[stop] == owners[stop - 1]:
            first = int(np.searchsorted(owners, owners[stop], side="left"))
            stop = first if first > start else stop
        yield start, stop
        start = stop


def unit_rows(vectors: npt.NDArray[Any]) -> Float64Array:
    """Rows scaled to L2 norm 1, in float64; zero rows stay zero.

    Args:
        vectors: (n, d) real, finite, of float32's range.
    """
    rows = vectors.astype(np.float64)
    norms = np.sqrt(squared_norms(vectors))
    rows /= np.where(norms > 0.0, norms, 1.0)[:, None]
    return rows
