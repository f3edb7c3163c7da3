"""The kernel mean embedding of a user's texts, released once and asked for ever after.

Ours. Random Fourier features (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines",
NIPS 2007) turn the Gaussian kernel into a scalar product, so the mean of the features over all
users is a sketch of their distribution (Balog, Tolstikhin, Schölkopf, "Differentially Private
Database Release via Kernel Mean Embeddings", ICML 2018). One noisy release of it scores any
candidates in any later round: reading it again is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le, Lt, MultipleOf

from flower_privsyn.checks import NonNegativeInt
from flower_privsyn.queries.exact_product import RightFactor, exact_product
from flower_privsyn.queries.query import (
    Broadcast,
    Cohort,
    Float32Array,
    Float64Array,
    Query,
)
from flower_privsyn.queries.user_means import unit_rows, user_means

#: Rows of embeddings whose features are held at a time.
_BLOCK_ROWS = 1024

#: Numbers whose cosines and sines are worked on at a time: 128 KiB of float32.
_CACHED = 2**15

#: Numbers of the features of the records that are looked at together: 32 MiB of float32.
_BLOCK_NUMBERS = 2**23

#: Rows whose pairwise distances the median heuristic looks at.
_MEDIAN_ROWS = 2000

NumFeatures = Annotated[int, Ge(2), Le(2**16), MultipleOf(2)]
Bandwidth = Annotated[float, Ge(1e-6), Le(1e6)]


@dataclass(frozen=True, kw_only=True)
class KernelMean(Query):
    """Mean of kernel features over a user's records.

    With W (D / 2, d) of rows N(0, I / bandwidth^2), drawn from `feature_seed` on both sides,

        phi(x) = sqrt(2 / D) [cos(W x), sin(W x)],    E_W phi(x).phi(y) = exp(-|x - y|^2 / (2 b^2)),

    and with `embedding_weight` a > 0 the features are [sqrt(1 - a) phi(x), sqrt(a) x / |x|], whose
    scalar product is the mixture (1 - a) Gaussian + a cosine. D' = D, or D + d with a > 0.

    The broadcast (`broadcast`) holds "dimension" alone, (1,) integers: the length d of the
    embeddings. What else the users need are the parameters of the query.

    Formal guarantee:
        Unit: user. Features have norm 1 at most by construction, so their mean has; the clip to 1
        that follows acts on rounding errors only and the sketch is not biased by it. Sensitivity 1
        under zero-out and add/remove, 2 under replace-one.

    References:
        Rahimi and Recht 2007, section 3; Gretton et al., "A Kernel Two-Sample Test" (JMLR 2012)
        for the mean discrepancy and its witness.
    """

    name: ClassVar[str] = "kernel_mean"

    num_features: Annotated[
        NumFeatures,
        "D. The error of the kernel falls as D^-1/2, the noise in a score does not depend on D.",
    ] = 4096
    bandwidth: Annotated[
        Bandwidth, "b, in units of the embeddings; from public text (`median_bandwidth`)."
    ] = 1.0
    feature_seed: Annotated[int, Ge(0), Lt(2**63), "of W; public."] = 0
    embedding_weight: Annotated[float, Ge(0), Le(1), "a."] = 0.0
    max_samples: Annotated[
        NonNegativeInt, "records of one user that count, the first ones; 0 for all of them."
    ] = 0

    @property
    def clip_norm(self) -> float:
        """1, the norm of the features."""
        return 1.0

    @property
    def measured_in(self) -> str:
        """Per feature."""
        return "per feature"

    @property
    def max_records(self) -> int | None:
        """The cap on records, or None: the mean of any number of features is bounded."""
        return self.max_samples or None

    def broadcast(self, dimension: int) -> dict[str, npt.NDArray[np.int64]]:
        """What the server sends: the length of the embeddings it means."""
        return {"dimension": np.array([dimension], dtype=np.int64)}

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse anything but the dimension of the users' records."""
        announced = broadcast.get("dimension")
        if set(broadcast) != {"dimension"} or announced is None:
            raise ValueError(f"{self.name} is asked with the dimension, got {sorted(broadcast)}")
        if announced.shape != (1,) or announced.dtype.kind not in "iu":
            raise ValueError(
                f"dimension must be one integer, got {announced.dtype} of shape {announced.shape}"
            )
        if int(announced[0]) != dimension:
            raise ValueError(f"dimension must be {dimension}, got {int(announced[0])}")

    def answer_length(self, broadcast: Broadcast) -> int:
        """D, and d more when the embedding itself is among the features."""
        return self.sketch_length(int(broadcast["dimension"][0]))

    def sketch_length(self, dimension: int) -> int:
        """D' for embeddings of length `dimension`."""
        return self.num_features + (dimension if self.embedding_weight > 0 else 0)

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """Mean features of each user, (num_users, D')."""
        return user_means(
            cohort,
            lambda records: features(records, query=self),
            width=self.answer_length(broadcast),
            block_numbers=_BLOCK_NUMBERS,
        )


def features(embeddings: npt.NDArray[Any], *, query: KernelMean) -> Float32Array:
    """Kernel features of embeddings.

    Args:
        embeddings: (n, d) real, finite. A row so long that nothing is left of its phases (2^52
            turns) has zero Fourier features, and a zero row no direction.
        query: whose kernel.

    Returns:
        (n, D') float32, rows of norm 1 up to rounding. A row's features are the same bits with any
        rows beside it, any number of threads and on any processor: projected without rounding
        (`exact_product`), cosines and sines by basic arithmetic alone.

    Raises:
        ValueError: the embeddings are not a matrix.
    """
    if embeddings.ndim != 2:
        raise ValueError(f"embeddings must be (n, d), got {embeddings.shape}")
    n, dimension = embeddings.shape
    half = query.num_features // 2
    result = np.empty((n, query.sketch_length(dimension)), dtype=np.float32)
    turns = _turns(query.num_features, dimension, query.bandwidth, query.feature_seed)
    scale = np.float32(math.sqrt((1.0 - query.embedding_weight) * 2.0 / query.num_features))
    for start in range(0, n, _BLOCK_ROWS):
        block = embeddings[start : start + _BLOCK_ROWS]
        rows = result[start : start + _BLOCK_ROWS]
        phases = exact_product(block, turns)  # (rows, D / 2)
        _cosines_and_sines(phases, rows[:, :half], rows[:, half : 2 * half])
        rows[:, : 2 * half] *= scale
        rows[np.abs(phases).max(axis=1) >= 2.0**52, : 2 * half] = 0.0
        if query.embedding_weight > 0:
            rows[:, 2 * half :] = math.sqrt(query.embedding_weight) * unit_rows(block)
    return result


def mean_features(embeddings: npt.NDArray[Any], *, query: KernelMean) -> Float64Array:
    """Mean of the features over the rows of (p, d) embeddings, (D',) float64.

    Raises:
        ValueError: there is no row.
    """
    if embeddings.ndim != 2 or len(embeddings) == 0:
        raise ValueError(f"embeddings must be (p, d) with p >= 1, got {embeddings.shape}")
    total = np.zeros(query.sketch_length(embeddings.shape[1]), dtype=np.float64)
    for _, block in _feature_blocks(embeddings, query):
        total += block.sum(axis=0, dtype=np.float64)
    return total / len(embeddings)


def mean_scores(
    candidates: npt.NDArray[Any],
    release: npt.NDArray[Any],
    num_users: float,
    *,
    query: KernelMean,
) -> Float64Array:
    """Mean kernel between each candidate and the users' texts: POPri's objective, from a sketch.

    Unbiased given W: the expectation over the noise is the mean over users of the mean over their
    texts of phi(candidate).phi(text). The noise in one score has standard deviation
    noise_std |phi(candidate)| / num_users, whatever D is.

    Args:
        candidates: (m, d) embeddings.
        release: (D',) the noisy sum.
        num_users: users in the sum, > 0: public, or an estimate such as a noisy count. It scales
            all scores alike.
        query: the query that was released.

    Returns:
        (m,) float64.

    Raises:
        ValueError: shapes do not fit, or `num_users` is not positive.
    """
    return _scores(candidates, _mean(release, num_users, candidates, query), query)


def witness_scores(
    candidates: npt.NDArray[Any],
    release: npt.NDArray[Any],
    num_users: float,
    population: npt.NDArray[Any],
    *,
    query: KernelMean,
) -> Float64Array:
    """How much more the users' texts resemble each candidate than the population does.

    The witness function of the mean discrepancy: positive where private text is denser than the
    population. It stops rewarding what the population covers already. Unbiased given W when
    `num_users` is exact; a wrong one scales the first of the two terms.

    Args:
        candidates: (m, d) embeddings.
        release: (D',) the noisy sum.
        num_users: users in the sum, > 0.
        population: (p, d) embeddings of the texts that are there already, p >= 1.
        query: the query that was released.

    Returns:
        (m,) float64.

    Raises:
        ValueError: shapes do not fit, or `num_users` is not positive.
    """
    mean = _mean(release, num_users, candidates, query)
    return _scores(candidates, mean - mean_features(population, query=query), query)


def squared_mmd(
    release: npt.NDArray[Any],
    num_users: float,
    population: npt.NDArray[Any],
    noise_std: float,
    *,
    query: KernelMean,
) -> float:
    """Squared mean discrepancy between users and a population, unbiased for the noise.

    |release / n - mean features|^2 less D' noise_std^2 / n^2, what the noise adds on average.
    Hence it may be negative, and its square root, or that of its positive part, is not unbiased.
    It is unbiased for a population that does not depend on the noise: texts that were chosen by
    scores from this very release look nearer than they are. It compares these users with these
    texts; as an estimate for the distributions they come from it is larger by the usual 1 / n and
    1 / p of a V-statistic.

    Args:
        release: (D',) the noisy sum.
        num_users: users in the sum, > 0.
        population: (p, d) embeddings, p >= 1.
        noise_std: standard deviation of the noise in each coordinate of the release, >= 0.
        query: the query that was released.

    Raises:
        ValueError: shapes do not fit, `num_users` is not positive or `noise_std` is negative.
    """
    if not (math.isfinite(noise_std) and noise_std >= 0):
        raise ValueError(f"noise_std must be finite and >= 0, got {noise_std}")
    difference = _mean(release, num_users, population, query) - mean_features(
        population, query=query
    )
    return float(difference @ difference - len(difference) * (noise_std / num_users) ** 2)


def median_bandwidth(public_embeddings: npt.NDArray[Any], *, seed: int = 0) -> float:
    """Median Euclidean distance between public embeddings: the median heuristic.

    Args:
        public_embeddings: (n, d), public; of more than 2,000 rows that many are drawn.
        seed: of the draw.

    Raises:
        ValueError: there are fewer than two rows, or more than half of all pairs are equal.
    """
    if public_embeddings.ndim != 2 or len(public_embeddings) < 2:
        raise ValueError(f"embeddings must be (n, d) with n >= 2, got {public_embeddings.shape}")
    rows = public_embeddings
    if len(rows) > _MEDIAN_ROWS:
        chosen = np.random.default_rng(seed).permutation(len(rows))[:_MEDIAN_ROWS]
        rows = rows[np.sort(chosen)]
    rows = rows.astype(np.float64)
    rows = rows - rows.mean(axis=0)
    squares = np.einsum("nd,nd->n", rows, rows)
    squared = squares[:, None] + squares[None, :] - 2.0 * (rows @ rows.T)
    upper = np.triu_indices(len(rows), k=1)
    median = float(np.sqrt(np.maximum(np.median(squared[upper]), 0.0)))
    if not math.isfinite(median) or median**2 <= 1e-12 * float(squares.max()):
        raise ValueError("more than half of the public embeddings are equal or not finite")
    return median


@lru_cache(maxsize=4)
def frequencies(*, num_features: int, dimension: int, bandwidth: float, seed: int) -> Float32Array:
    """W, rows N(0, I / bandwidth^2): the same bits on every machine.

    Philox is specified to the bit; its words become normal variates by Marsaglia's polar method
    with additions, multiplications, divisions and square roots only, which IEEE 754 defines to the
    last bit. Library functions such as `log` and `cos` are not: they differ between processors.

    Args:
        num_features: D, even; the first rows for a smaller D are the same.
        dimension: d.
        bandwidth: > 0.
        seed: in [0, 2^63).

    Returns:
        (D / 2, d) float32, read-only.
    """
    normals = _normals(num_features // 2 * dimension, seed=seed)
    weights = (normals / bandwidth).astype(np.float32).reshape(num_features // 2, dimension)
    weights.flags.writeable = False
    return weights


@lru_cache(maxsize=4)
def _turns(num_features: int, dimension: int, bandwidth: float, seed: int) -> RightFactor:
    """W over 2 pi, so that a projection counts turns, for exact products."""
    weights = frequencies(
        num_features=num_features, dimension=dimension, bandwidth=bandwidth, seed=seed
    )
    return RightFactor.of(weights.astype(np.float64) / (2.0 * math.pi))


def _cosines_and_sines(turns: Float64Array, cosines: Float32Array, sines: Float32Array) -> None:
    """Cosine and sine of 2 pi `turns` (n, k), written into (n, k) float32, to 2e-7.

    A library's may take one path for a register full of numbers and another for what is left over,
    so that a bit depends on where a number lies. Here are additions and multiplications only.
    """
    rows = max(1, _CACHED // max(1, turns.shape[1]))
    for start in range(0, len(turns), rows):
        part = turns[start : start + rows] * 4.0
        nearest = np.rint(part)
        quarter = np.mod(nearest, 4.0).astype(np.int8)
        y = (part - nearest).astype(np.float32)  # in quarter turns, [-1/2, 1/2]
        square = y * y
        cosine = np.full_like(y, _COSINE[-1])
        sine = np.full_like(y, _SINE[-1])
        for c, s in zip(_COSINE[-2::-1], _SINE[-2::-1], strict=True):
            cosine *= square
            cosine += c
            sine *= square
            sine += s
        sine *= y
        odd = (quarter & 1).astype(bool)
        first, second = np.where(odd, sine, cosine), np.where(odd, cosine, sine)
        np.negative(first, out=first, where=((quarter + 1) & 2).astype(bool))
        np.negative(second, out=second, where=(quarter & 2).astype(bool))
        cosines[start : start + rows], sines[start : start + rows] = first, second


def _series(first: int) -> tuple[np.float32, ...]:
    """Taylor coefficients of cos(pi y / 2) (`first` 0) or sin(pi y / 2) / y (1) in y^2."""
    coefficients, term = [], math.pi / 2 if first else 1.0
    for k in range(6):
        coefficients.append(np.float32(term))
        term *= -(math.pi * math.pi / 4) / ((2 * k + first + 1) * (2 * k + first + 2))
    return tuple(coefficients)


#: Six terms each: what is left out is below 2e-10 on [-1/2, 1/2].
_COSINE, _SINE = _series(0), _series(1)


def _normals(count: int, *, seed: int) -> Float64Array:
    """`count` standard normal variates, (count,) float64."""
    stream = np.random.Philox(key=seed)
    parts: list[Float64Array] = []
    missing = count
    while missing > 0:
        words = stream.random_raw(2 * 4096).reshape(-1, 2) >> np.uint64(11)  # 53 bits each
        points = words.astype(np.float64) * 2.0**-52 - 1.0  # exact, in [-1, 1)
        squares = points[:, 0] * points[:, 0] + points[:, 1] * points[:, 1]
        inside = (squares > 0.0) & (squares < 1.0)
        points, squares = points[inside], squares[inside]
        part = (points * np.sqrt(-2.0 * _log(squares) / squares)[:, None]).reshape(-1)
        parts.append(part)
        missing -= len(part)
    return np.concatenate(parts)[:count] if parts else np.empty(0)


def _log(values: Float64Array) -> Float64Array:
    """Natural logarithm of positive numbers to 1e-15, by basic arithmetic alone."""
    mantissa, exponent = np.frexp(values)  # mantissa in [0.5, 1), exact
    low = mantissa < math.sqrt(0.5)
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    exponent = exponent.astype(np.float64) - low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)  # |ratio| < 0.172
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for odd in range(23, 0, -2):  # the next term is below 1e-18
        series = series * square + 1.0 / odd
    return exponent * 0.6931471805599453 + 2.0 * ratio * series


def _feature_blocks(
    embeddings: npt.NDArray[Any], query: KernelMean
) -> Iterator[tuple[slice, Float32Array]]:
    for start in range(0, len(embeddings), _BLOCK_ROWS):
        rows = slice(start, start + _BLOCK_ROWS)
        yield rows, features(embeddings[rows], query=query)


def _mean(
    release: npt.NDArray[Any], num_users: float, embeddings: npt.NDArray[Any], query: KernelMean
) -> Float64Array:
    """The released mean, checked against the query."""
    if embeddings.ndim != 2:
        raise ValueError(f"embeddings must be (n, d), got {embeddings.shape}")
    length = query.sketch_length(embeddings.shape[1])
    release = np.asarray(release, dtype=np.float64)
    if release.shape != (length,) or not np.isfinite(release).all():
        raise ValueError(f"the release must be ({length},) and finite, got {release.shape}")
    if not (math.isfinite(num_users) and num_users > 0):
        raise ValueError(f"num_users must be finite and > 0, got {num_users}")
    return release / num_users


def _scores(
    candidates: npt.NDArray[Any], direction: Float64Array, query: KernelMean
) -> Float64Array:
    scores = np.empty(len(candidates), dtype=np.float64)
    for rows, block in _feature_blocks(candidates, query):
        scores[rows] = block @ direction
    return scores
