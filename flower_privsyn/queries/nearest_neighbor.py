"""Nearest-neighbour votes: which candidate lies closest to each of a user's records.

Private evolution's question. Lin et al., "Differentially Private Synthetic Data via Foundation
Model APIs 1: Images" (2023), Algorithm 2; Hou et al., "PrE-Text: Training Language Models on
Private Federated Data in the Age of LLMs" (ICML 2024), Algorithm 2, lines 8-13 (user level).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from flower_privsyn.checks import NonNegativeFloat, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.queries.nearest import nearest_candidates
from flower_privsyn.queries.query import (
    Broadcast,
    Cohort,
    Float64Array,
    IntArray,
    Query,
)

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

    max_samples: Annotated[
        PositiveInt, "records of one user that vote (8 in PrE-Text, 16 for CODE)."
    ] = 8
    clip: Annotated[
        VoteClip, '"count" (the papers), "l2", or "share": the votes of a user weigh 1 together.'
    ] = "count"
    clip_to: Annotated[
        NonNegativeFloat,
        'the norm for `clip="l2"`, in [sqrt(max_samples), max_samples]; 0 means sqrt(max_samples).',
    ] = 0.0

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
    def measured_in(self) -> str:
        """Votes for one candidate."""
        return "votes per candidate"

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
        asked = dict(broadcast)
        classes = asked.pop("classes", None)
        super().check(asked, dimension=dimension)
        if classes is None:
            raise ValueError(f"{self.name} is asked about classes of candidates")
        if classes.shape != (len(asked["candidates"]),) or classes.dtype.kind != "i":
            raise ValueError(
                f"classes must be whole numbers, one per candidate, got {classes.dtype} "
                f"{classes.shape}"
            )
        if classes.size and classes.min() < 0:
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
