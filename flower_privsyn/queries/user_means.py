"""One mean per user over transformed records, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.privacy import squared_norms
from flower_privsyn.queries.query import Cohort, Float32Array, Float64Array, IntArray

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
    norms = np.sqrt(squared_norms(rows))
    rows /= np.where(norms > 0.0, norms, 1.0)[:, None]
    return rows
