"""Nearest-neighbour votes: which candidate lies closest to each of a user's records.

Private evolution's question. Lin et al., "Differentially Private Synthetic Data via Foundation
Model APIs 1: Images" (2023), Algorithm 2; Hou et al., "PrE-Text: Training Language Models on
Private Federated Data in the Age of LLMs" (ICML 2024), Algorithm 2, lines 8-13 (user level).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import NonNegativeFloat, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.queries.arrays import Broadcast, Float32Array, Float64Array, Form, IntArray
from flower_privsyn.queries.candidate_pruning import pays, possible
from flower_privsyn.queries.query import Cohort, Query, check_arrays, once_per_array

#: Elements of one block of the similarity matrix: 8 MiB of bfloat16, or 16 of float32.
_BLOCK_ELEMENTS = 2**22


def block_rows(num_candidates: int) -> int:
    """Records that one block of the similarity matrix holds."""
    return max(1, min(1024, _BLOCK_ELEMENTS // num_candidates))


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
    the product's best is looked at. Where a processor multiplies bfloat16 fast, candidates that
    cannot win are left out of the product (`candidate_pruning`), which changes no result.

    Args:
        records: (n, d) float32, finite.
        candidates: (m, d) float32, finite, m >= 1.

    Returns:
        (n,) int64 in `range(m)`.
    """
    n, dimension = records.shape
    m = len(candidates)
    right, longest = _right_side(candidates)
    every, prunes = np.arange(m), pays(m)
    nearest = np.empty(n, dtype=np.int64)
    rows = block_rows(m)
    left = np.ones((min(rows, n), dimension + 1), dtype=np.float32)
    products = np.empty((min(rows, n), m), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, n, rows):
            found = nearest[start : start + rows]
            block = left[: len(found)]
            block[:, :-1] = records[start : start + rows]
            lengths = np.sqrt(np.einsum("nd,nd->n", block, block, dtype=np.float64))
            tolerance = _tolerance(lengths, longest, dimension)
            rest: Any = slice(None)
            if prunes:
                sure, columns, scores = possible(block, lengths, right)
                found[sure] = _best_with_ties(
                    scores, columns, tolerance[sure], block[sure, :-1], candidates
                )
                rest, prunes = ~sure, bool(sure.mean() >= 0.5)
            block = block[rest]
            scores = np.matmul(block, right.T, out=products[: len(block)])
            columns = np.broadcast_to(every, scores.shape)
            found[rest] = _best_with_ties(
                scores, columns, tolerance[rest], block[:, :-1], candidates
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
    right = np.empty((m, dimension + 1), dtype=np.float32)
    right[:, :-1] = candidates
    with np.errstate(over="ignore"):  # beyond float32 the second look decides
        right[:, -1] = -0.5 * squared_norms
    right.flags.writeable = False  # what is made of it is remembered
    return right, math.sqrt(float(squared_norms.max()))


def _best_with_ties(
    scores: Float32Array,
    columns: IntArray,
    tolerance: Float64Array,
    records: Float32Array,
    candidates: Float32Array,
) -> IntArray:
    """Of each row the column with the largest score (overwritten), near ties decided in float64."""
    rows = np.arange(len(scores))
    places = scores.argmax(axis=1)
    top = scores[rows, places].astype(np.float64)
    # The runner-up tells whether the row needs a second look; a masked maximum costs one more
    # pass over a block that is still in cache.
    scores[rows, places] = -np.inf
    second = scores.max(axis=1).astype(np.float64)
    best: IntArray = columns[rows, places]
    doubtful = ~(top - second > tolerance)  # true for NaN and Inf as well
    if not doubtful.any():
        return best
    scores[rows, places] = top
    for row in np.flatnonzero(doubtful):
        if np.isfinite(top[row]) and np.isfinite(tolerance[row]):
            close = columns[row, ~(scores[row] < top[row] - tolerance[row])]
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


VoteClip = Literal["count", "l2", "share"]


@dataclass(frozen=True, kw_only=True)
class NearestNeighborHistogram(Query):
    """Votes of a user's records for their nearest candidates.

    Formal guarantee:
        Unit: user. With `clip="count"` at most `max_samples` records of a user vote, one vote
        each, so the contribution has L1 and L2 norm at most `max_samples` (attained when all
        votes fall on one candidate). With `clip="l2"` the vector of votes is scaled down to L2
        norm `clip_to` (default sqrt(max_samples), which leaves votes on distinct candidates
        untouched and shrinks concentrated ones): the noise is smaller by max_samples / clip_to.
        With `clip="share"` the votes of a user are divided by their number, so that they add up to
        1 whoever wrote how much: L1 norm 1 and L2 norm at most 1, attained when all votes fall on
        one candidate.

    References:
        Hou et al. 2024 (PrE-Text), Algorithm 2, lines 8-13; Lin et al. 2023, Algorithm 2.
    """

    name: ClassVar[str] = "nearest_neighbor_histogram"

    max_samples: PositiveInt = 8
    """Records of one user that vote (8 in PrE-Text, 16 for CODE)."""
    clip: VoteClip = "count"
    """Either "count" (the papers), "l2", or "share": the votes of a user weigh 1 together."""
    clip_to: NonNegativeFloat = 0.0
    """The norm for `clip="l2"`, in [sqrt(max_samples), max_samples]; 0 means sqrt(max_samples)."""

    def __post_init__(self) -> None:
        """Validate the parameters."""
        super().__post_init__()
        low = math.sqrt(self.max_samples)
        # The exact end points are allowed although sqrt rounds.
        inside = low * (1 - 1e-12) <= self.clip_to <= self.max_samples
        if self.clip_to != 0.0 and not (self.clip == "l2" and inside):
            raise ConfigError(
                f'clip-to must be 0 (automatic), or with clip = "l2" between sqrt(max-samples) = '
                f"{low:.6g} and max-samples = {self.max_samples}; got {self.clip_to} with clip = "
                f'"{self.clip}"'
            )

    @property
    def clip_norm(self) -> float:
        """`max_samples` votes, 1 for shares, or the norm of `clip="l2"`."""
        if self.clip == "count":
            return float(self.max_samples)
        if self.clip == "share":
            return 1.0
        return self.clip_to or math.sqrt(self.max_samples)

    @property
    def max_records(self) -> int:
        """The cap on votes, enforced where the data are."""
        return self.max_samples

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Each user's votes for `broadcast["candidates"]`, (num_users, m)."""
        votes = np.zeros((cohort.num_users, len(broadcast["candidates"])), dtype=np.float64)
        np.add.at(votes, self._votes(cohort, broadcast), 1.0)
        return self._weighed(votes)

    def _weighed(self, votes: Float64Array) -> Float64Array:
        """Counts of votes, users in the rows, as `clip` weighs them before it bounds them."""
        if self.clip != "share":
            return votes
        shares: Float64Array = votes / np.maximum(votes.sum(axis=1, keepdims=True), 1.0)
        return shares

    def _votes(self, cohort: Cohort, broadcast: Broadcast) -> tuple[IntArray, IntArray]:
        """Who votes, users in ascending order, and for which candidate: one entry per vote."""
        return cohort.owners, nearest_candidates(cohort.records, broadcast["candidates"])

    def answer(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Sum of the clipped votes, without the (users, candidates) matrix.

        The votes of a user are sparse: often only `max_samples` of m counts differ from zero, and
        the same clip is applied to those counts alone. With `clip="count"` that is the sum of
        `contribution` exactly; with the other two to one step of the grid per user, because the
        clip's own safety margin against rounding follows the length of the vector.
        """
        m = len(broadcast["candidates"])
        cohort = self._usable(cohort)
        voters, nearest = self._votes(cohort, broadcast)
        if self.clip == "count":
            return np.bincount(nearest, minlength=m).astype(np.float64)
        cells, votes = np.unique(voters * m + nearest, return_counts=True)
        owners = cells // m
        place = np.arange(len(cells)) - np.searchsorted(owners, owners, side="left")
        # A user's nonzero counts, packed to the left.
        packed = np.zeros((cohort.num_users, min(self.max_samples, m)), dtype=np.float64)
        packed[owners, place] = votes
        weights = self._clip(self._weighed(packed))[owners, place]
        total: Float64Array = np.bincount(cells % m, weights=weights, minlength=m).astype(
            np.float64
        )
        return total


@dataclass(frozen=True, kw_only=True)
class LabelledHistogram(NearestNeighborHistogram):
    """Votes of a user's records for their nearest candidates of the same class.

    Formal guarantee:
        Unit: user. The votes of a user for the candidates of all classes are ONE vector, capped and
        clipped as a whole, so that a user with records of several classes contributes no more than
        one whose records are all of one. With `clip="count"` its L1 and L2 norms are at most
        `max_samples`, attained where all votes fall on one candidate; in k classes the L2 norm is
        at most sqrt((max_samples - k + 1)^2 + k - 1). With `clip="l2"` it is at most `clip_to`,
        attained in any number of classes. (One vector per class, each clipped by itself, would
        multiply the sensitivity by the square root of the number of classes.) Which classes there
        are is public; a record of none of them, or of one without candidates, does not vote.

    References:
        Xie et al., "Differentially Private Synthetic Data via Foundation Model APIs 2: Text"
        (Aug-PE, ICML 2024), whose unit is a record, which has one class.
    """

    name: ClassVar[str] = "labelled_histogram"
    labelled: ClassVar[bool] = True

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse a broadcast that does not say of which class each candidate is."""
        forms: dict[str, Form] = {
            "candidates": ((None, dimension), ("f",)),
            "classes": (np.shape(broadcast.get("candidates", ()))[:1], ("i",)),
        }
        check_arrays(self.name, broadcast, forms)
        if broadcast["classes"].min() < 0:
            raise ValueError("classes must be at least 0: a record below that has no class")

    def _votes(self, cohort: Cohort, broadcast: Broadcast) -> tuple[IntArray, IntArray]:
        """Who votes, users in ascending order, and for which candidate: one entry per vote."""
        if cohort.labels is None:
            raise ValueError(f"{self.name} is asked about records that have classes")
        candidates, classes = broadcast["candidates"], broadcast["classes"]
        nearest = np.full(len(cohort.owners), -1, dtype=np.int64)
        for label in np.unique(classes):
            members = np.flatnonzero(classes == label)
            rows = np.flatnonzero(cohort.labels == label)
            if rows.size:
                chosen = nearest_candidates(cohort.records[rows], candidates[members])
                nearest[rows] = members[chosen]
        voting = nearest >= 0
        return cohort.owners[voting], nearest[voting]
