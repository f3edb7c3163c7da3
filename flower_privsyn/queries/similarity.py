"""Mean cosine similarity of a user's texts to every candidate: POPri's question.

Hou et al., "Private Federated Learning using Preference-Optimized Synthetic Data" (POPri, ICML
2025), Algorithm 1: each user scores every candidate by the mean cosine similarity to the user's
own texts and clips the vector of scores to norm 1.

The scores of one user are the image of one d-vector. With C (m, d) the centred unit candidates and
u (d,) the mean of the user's unit records they are C u, so the sum over all users lies in the
column span of C, of dimension d at most. With the symmetric root A = (C'C)^(1/2) (d, d),

    |A u| = |C u|      and      C A^+ is an isometry from the row space of C onto that span,

hence a user may answer with A u, clipped, in place of C u, clipped: the norms are equal, and the
server gets the one from the other. `answer_space = "span"` does; see `expand_scores`. A node then
needs of the candidates nothing but A, so A is all that is broadcast: d (d + 1) / 2 numbers, however
many candidates there are. Whoever factorises, does it once, at the server: from one A every machine
computes the same answer to the bit.

With `answer_space = "candidates"` the same makes a sum of many users cheap: their vectors are added
up in the span and the sum is multiplied by E = C A^+ (m, d) once, n d^2 + m d^2 operations in place
of n m d. So that this is what the users would have answered one by one, to the bit, nothing in the
product is rounded: E and the vectors of the users are whole multiples of 2^-15, and their products
are points of the grid. A score of a vector of norm 1 is off by less than 2^-15 as a rule; to round
the candidates to float16, as messages do, moves it by more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import NonNegativeInt
from flower_privsyn.privacy import squared_norms
from flower_privsyn.privacy.mechanisms import GRID
from flower_privsyn.queries.arithmetic import RightFactor, exact_product, unit_rows, user_means
from flower_privsyn.queries.arrays import Broadcast, Float64Array, Form
from flower_privsyn.queries.query import Cohort, Query, check_arrays, once_per_array

Centre = Literal["prompt", "all", "none"]
Scale = Literal["clip", "unit"]
AnswerSpace = Literal["candidates", "span"]

#: Root mean square of a user's centred cosines below which the user has no preference. Embeddings
#: of passages give about 0.09; equal texts in float32, 1e-7.
_NO_PREFERENCE = 1e-4

#: Directions of the candidates shorter than this share of the longest one are left out by the
#: server: the root of C'C knows them to 1e-7 only, and rounding embeddings to float16 moves them by
#: 1e-4. Some have no length at all: all-MiniLM-L6-v2 has two dimensions that never vary.
_RELATIVE_CUT = 1e-6

#: Step of a user's vector in the span, and of the expansion that it is multiplied by.
_STEP = math.sqrt(GRID)

#: Users whose expanded sum is exact: no partial sum of theirs reaches 2^53 steps of the grid.
_EXPANDED_USERS = 2**22

#: Users summed at a time: a block of 6 MiB for d = 384 stays in the processor's cache.
_BLOCK_USERS = 2048


@dataclass(frozen=True)
class _Expansion:
    """From vectors in the span to scores of all candidates.

    Attributes:
        root: (d, d) A, for exact products.
        scores: (m, d) C A^+, rounded to multiples of `_STEP`.
        longest: no vector becomes longer by more than this factor, about 1.
    """

    root: RightFactor
    scores: Float64Array
    longest: float


@dataclass(frozen=True, kw_only=True)
class MeanSimilarity(Query):
    """Mean cosine similarity of a user's records to each candidate, centred, of norm 1 at most.

    What is broadcast, `broadcast` makes of the candidates. With `answer_space="candidates"` it is
    themselves, "candidates", (m, d) float32, and with `centre="prompt"` also "prompt", (m,)
    integers: the group of each candidate. Groups may have any size and any order. With "span" it is
    "root", (d (d + 1) / 2,) float32: the upper triangle of A, row by row.

    Formal guarantee:
        Unit: user. Whatever a user's records are and whatever was broadcast, the contribution has
        L2 norm at most 1, in both answer spaces and with both scales, so the sensitivity is 1 under
        zero-out and add/remove and 2 under replace-one. The number of records of a user needs no
        bound. A root that is none of any candidates changes what is asked, and not this.

    Centring is a public linear map, applied before the scaling:
        "prompt": each user's mean over the candidates of one prompt is subtracted. Only the order
            within a prompt is used later, so what is removed carries no information and would
            use up the norm.
        "all": each user's mean over all candidates is subtracted (the authors' code).
        "none": raw cosines (the paper). They are nearly constant over candidates, so most of the
            norm is spent on their common mean.

    Scaling:
        "clip": vectors longer than 1 are scaled to 1, shorter ones are left as they are (the
            paper). The norm of a centred vector is sqrt(m) times the spread of the user's cosines:
            with thousands of candidates it usually exceeds 1 and this equals "unit"; with few
            candidates, or for a user to whom all are equally near, it stays below 1 and that user
            counts for less.
        "unit": every vector is scaled to norm 1 (the authors' code), so that every user with a
            preference counts the same. A user whose centred cosines have a root mean square below
            1e-4 has none and contributes zero.

    References:
        Hou et al. 2025 (POPri), Algorithm 1, the clients' scores.
    """

    name: ClassVar[str] = "mean_similarity"
    unrounded: ClassVar[tuple[str, ...]] = ("root",)

    centre: Centre = "prompt"
    """What is subtracted, see above."""
    scale: Scale = "clip"
    """How vectors get norm 1 at most, see above."""
    max_samples: NonNegativeInt = 0
    """Records of one user that count, the first ones; 0 for all of them."""
    answer_space: AnswerSpace = "candidates"
    """What travels: "candidates": the m scores. "span": d numbers from which the server computes
    the same m scores (`expand_scores`), and the candidates stay at the server; at equal privacy the
    noise in the scores is that of "candidates" projected onto the span, with m / d times less
    variance on average.
    """

    @property
    def clip_norm(self) -> float:
        """1, with both scales and in both answer spaces."""
        return 1.0

    @property
    def max_records(self) -> int | None:
        """The cap on records, or None: the clip alone bounds a user."""
        return self.max_samples or None

    def broadcast(
        self, candidates: npt.NDArray[Any], *, prompt: npt.NDArray[Any] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """What users are sent when they are asked about candidates.

        Args:
            candidates: (m, d) real, finite.
            prompt: (m,) integer group of each candidate, for `centre="prompt"`.

        Raises:
            ValueError: shapes do not fit, a value is not finite, or `prompt` and `centre` disagree.
        """
        about = {"candidates": candidates} | ({} if prompt is None else {"prompt": prompt})
        self._check_candidates(about, candidates.shape[-1])
        if self.answer_space == "candidates":
            return about
        root, _ = _factorised(candidates, prompt, self.centre)
        if self.scale == "unit":
            # Rows of norm 1 do not feel it, and a node sees the root mean square of the cosines.
            root = root / np.sqrt(len(candidates))
        return {"root": root[np.triu_indices(len(root))].astype(np.float32)}

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse a root or candidates of the wrong form, and groups that are no integers.

        Any finite triangle of a (d, d) matrix can be asked with.
        """
        if self.answer_space == "span":
            triangle = dimension * (dimension + 1) // 2
            check_arrays(self.name, broadcast, {"root": ((triangle,), ("float32",))})
            return
        self._check_candidates(broadcast, dimension)

    def _check_candidates(self, broadcast: Broadcast, dimension: int) -> None:
        """Refuse candidates of the wrong form, and groups that are not one integer each."""
        forms: dict[str, Form] = {"candidates": ((None, dimension), ("f",))}
        if self.centre == "prompt":
            forms["prompt"] = (np.shape(broadcast.get("candidates", ()))[:1], ("i", "u"))
        check_arrays(self.name, broadcast, forms)

    def answer_length(self, broadcast: Broadcast) -> int:
        """One number per candidate, or in the span one per dimension of the embedding."""
        if self.answer_space == "span":
            return _side(len(broadcast["root"]))
        return len(broadcast["candidates"])

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Each user's centred mean cosines, (num_users, m), or their span form, (num_users, d).

        With `scale="unit"` they are scaled to norm 1 here; the clip does the rest. The m scores are
        expanded from a vector in the span that is clipped before.
        """
        if self.answer_space == "span":
            return self._in_span(cohort, _received_root(broadcast["root"]), 1)
        expansion = self._expansion(broadcast)
        return self._to_expand(cohort, expansion) @ (_STEP * expansion.scores.T)

    def answer(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """The sum of the contributions; that of all candidates' scores is expanded once.

        Formal guarantee:
            It equals the sum of `contribution` to the bit. `Query` clips what is added up in the
            span, of which the expansion makes no vector longer than 1: the clip of its scores,
            which is left out here, finds nothing to shorten and nothing to round.
        """
        if self.answer_space == "span":
            return super().answer(cohort, broadcast)
        expansion = self._expansion(broadcast)
        scores = np.zeros(self.answer_length(broadcast), dtype=np.float64)
        for many in cohort.blocks(_EXPANDED_USERS):
            total = np.zeros(len(expansion.root.integers), dtype=np.float64)
            for block in many.blocks(_BLOCK_USERS):
                total += self._to_expand(self._usable(block), expansion).sum(axis=0)
            scores += expansion.scores @ (_STEP * total)
        return scores

    def _expansion(self, broadcast: Broadcast) -> _Expansion:
        return _expansion(broadcast["candidates"], broadcast.get("prompt"), self.centre)

    def _to_expand(self, cohort: Cohort, expansion: _Expansion) -> Float64Array:
        """Users' vectors in the span, in whole steps of `_STEP`, of norm 1 / `longest` at most."""
        steps = self._clip(self._in_span(cohort, expansion.root, len(expansion.scores)))
        steps *= 1.0 / (expansion.longest * _STEP)
        return np.trunc(steps, out=steps)

    def _in_span(self, cohort: Cohort, root: RightFactor, num_candidates: int) -> Float64Array:
        """Users' vectors in the span, (num_users, d), scaled but not clipped."""
        vectors = exact_product(user_means(cohort, unit_rows, width=len(root.integers)), root)
        if self.scale == "unit":
            norms = np.sqrt(squared_norms(vectors))
            decided = norms > _NO_PREFERENCE * np.sqrt(num_candidates)
            vectors *= np.where(decided, 1.0 / np.where(decided, norms, 1.0), 0.0)[:, None]
        return vectors


def expand_scores(
    release: npt.NDArray[Any],
    candidates: npt.NDArray[Any],
    *,
    prompt: npt.NDArray[Any] | None = None,
    centre: Centre = "prompt",
) -> Float64Array:
    """Scores of all candidates from a release with `answer_space="span"`.

    The candidates must be those that the root was made of (`MeanSimilarity.broadcast`); where the
    same arrays are given, not writeable, they are factorised once for both.

    At zero noise the result is the sum of the users' clipped scores. With noise N(0, sigma^2 I) in
    the release it is that sum plus noise of covariance sigma^2 P, P the orthogonal projection onto
    the span of the centred candidates: exactly what is left of N(0, sigma^2 I) added to the m
    scores after the part outside the span, where the true sum cannot lie, is taken out. The
    variance per candidate is sigma^2 rank / m on average, rank <= min(m, d).

    Why the users' root, rounded to float32 on the way, need not be the server's to the last bit:
    the symmetric root is a continuous function of C, also where C has no full rank, and the map
    back never lengthens a vector. With roots A on a user's side and B here the result is off by at
    most |A - B| |u| per user, however small the shortest directions are.

    Args:
        release: (d,) the noisy sum.
        candidates: (m, d) that were asked about.
        prompt: (m,) integer group of each candidate, for `centre="prompt"`.
        centre: as in the query.

    Returns:
        (m,) float64, in the unit of the release (a sum over users).
    """
    inverse = _factorised(candidates, prompt, centre)[1]
    scores: Float64Array = _centred(candidates, prompt, centre) @ (inverse @ release)
    return scores


def _side(numbers: int) -> int:
    """How many rows a matrix has of whose upper triangle there are so many numbers."""
    return (math.isqrt(8 * numbers + 1) - 1) // 2


@once_per_array
def _received_root(triangle: npt.NDArray[Any]) -> RightFactor:
    """The symmetric matrix of an upper triangle, for exact products."""
    side = _side(len(triangle))
    root = np.zeros((side, side))
    root[np.triu_indices(side)] = triangle
    return RightFactor.of(root + np.triu(root, 1).T)


def _centred(
    candidates: npt.NDArray[Any], prompt: npt.NDArray[Any] | None, centre: Centre
) -> Float64Array:
    """C: unit candidates, centred; (m, d) float64. C u are a user's centred cosines."""
    rows = unit_rows(candidates)
    if centre == "all":
        rows -= rows.mean(axis=0)
    elif prompt is not None:
        groups = np.unique(prompt, return_inverse=True)[1].reshape(-1)
        order = np.argsort(groups, kind="stable")
        counts = np.bincount(groups)
        first = np.cumsum(counts) - counts
        means = np.add.reduceat(rows[order], first, axis=0) / counts[:, None]
        rows -= means[groups]
    return rows


@once_per_array
def _expansion(
    candidates: npt.NDArray[Any], prompt: npt.NDArray[Any] | None, centre: Centre
) -> _Expansion:
    """What a node that is asked about candidates makes of them."""
    centred = _centred(candidates, prompt, centre)
    root, inverse = _factorise(centred)
    scores: Float64Array = centred @ (inverse / _STEP)
    np.rint(scores, out=scores)
    # Of whole numbers these squares are exact; an eigenvalue is known to 2^-40 of the largest.
    longest = _STEP * math.sqrt(float(np.linalg.eigvalsh(scores.T @ scores)[-1]))
    scores *= _STEP
    return _Expansion(RightFactor.of(root), scores, max(1.0, longest) * (1 + 2.0**-20))


@once_per_array
def _factorised(
    candidates: npt.NDArray[Any], prompt: npt.NDArray[Any] | None, centre: Centre
) -> tuple[Float64Array, Float64Array]:
    """What the server asks with, and what it reads the release with: once, where it may be kept."""
    return _factorise(_centred(candidates, prompt, centre))


def _factorise(centred: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The symmetric root of C'C and its pseudo-inverse, both (d, d).

    An orthogonal factorisation of C would give the short directions more digits. It takes four
    times as long, and many times as long when other processes use the cores.
    """
    squares, directions = np.linalg.eigh(centred.T @ centred)
    lengths = np.sqrt(np.maximum(squares, 0.0))
    kept = lengths > _RELATIVE_CUT * lengths.max(initial=0.0)
    inverse_lengths = np.where(kept, 1.0 / np.where(kept, lengths, 1.0), 0.0)
    root = (directions * lengths) @ directions.T
    inverse = (directions * inverse_lengths) @ directions.T
    return root, inverse
