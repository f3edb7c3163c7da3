"""Mean and second moments of a user's embeddings, asked once for Fréchet distances ever after.

FreD (Hou, Zhan, Shrivastava, Wang, Livshits, Fanti, Lazar, "Privately Customizing Prefinetuning to
Better Match User Data in Federated Learning", 2023), Algorithm 1, by user and in one release: mean
and triangle of the second moments stand side by side in one vector of bounded length. Reading it
(`flower_privsyn.strategies._moments`) and comparing it with any text is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Le, Lt

from flower_privsyn.checks import NonNegativeInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import squared_norms
from flower_privsyn.queries.arithmetic import RightFactor, exact_product, user_means
from flower_privsyn.queries.arrays import Broadcast, Float64Array, Form, IntArray
from flower_privsyn.queries.query import Cohort, Query, check_arrays, once_per_array

#: Numbers of transformed records that are held at a time: 32 MiB of float64.
_BLOCK_NUMBERS: Final = 2**22

#: Most numbers in an answer.
_MOST_NUMBERS: Final = 2**23

Radius = Annotated[float, Ge(1e-6), Le(1e6)]
Unit = Literal["user", "record"]


@dataclass(frozen=True, kw_only=True)
class Moments(Query):
    """Mean and second moments of a user's clipped embeddings, in one vector.

    With B (k, d) a public basis and m (k,) a public centre, a record x becomes

        y = clip_c(B x - m) / c,    |y| <= 1,    c = `radius`,

    and its vector is (w0, w1 y, w2 tri(y y')), where tri is the upper triangle with what is off the
    diagonal times sqrt(2), so that |tri(y y')| = |y|^2: the noise of a covariance off the diagonal
    is halved in variance by that, for nothing. A user's answer is the mean of the vectors of their
    records; w0^2 + w1^2 + w2^2 = 1, by `count_share` and `covariance_share`. With w0 > 0 the first
    number counts those who have text; without, a user without text counts as one at the centre.

    With `unit` "record", as in the paper, a user's answer is the sum of the vectors of their first
    `max_samples` records, and its length is bounded by that number.

    The broadcast (`broadcast`) holds "centre", (k,) floats, and where embeddings are projected
    "basis", (k, d) floats. It may hold "shift", (k,) floats: y is then clip_c(clip_c(B x - m) - s)
    / c, the embeddings that the paper's second round centres by its noisy mean and clips again.

    Formal guarantee:
        Unit: user. A record's vector has squared norm w0^2 + w1^2 |y|^2 + w2^2 |y|^4 <= 1, so the
        mean of any number of them has norm 1 at most, and the sum of n of them n; the clip that
        follows acts on rounding errors only. Sensitivity `clip_norm` under zero-out and add/remove,
        twice that under replace-one. With `unit` "record" the sum moves by 1 when one record's
        vector is zeroed and by 2 when one record is replaced (for the second moments alone sqrt(2)
        is the most, attained by orthogonal records).

    References:
        Hou et al. 2023, Algorithm 1 and Proposition 3.1; Dwork, Talwar, Thakurta, Zhang, "Analyze
        Gauss" (STOC 2014) for the noise of a covariance.
    """

    name: ClassVar[str] = "moments"

    radius: Radius = 1.0
    """c, in units of the embeddings; from public text."""
    covariance_share: Annotated[float, Ge(0), Le(1)] = 0.5
    """The second moments' part of the squared norm that the count leaves; 0 asks for the mean
    alone, 1 for second moments alone.
    """
    count_share: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Part of the squared norm that counts who has text; 0 for no count."""
    unit: Unit = "user"
    """Who counts: "user": the mean over a user's records; "record": their sum, as in the paper."""
    max_samples: NonNegativeInt = 0
    """Records of one user that count, the first ones; 0 for all of them."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.unit == "record" and not self.max_samples:
            raise ConfigError(
                'unit = "record" needs max-samples of at least 1, got 0: nothing else bounds what '
                "one user adds"
            )

    @property
    def clip_norm(self) -> float:
        """1, or as many as a user's records that count."""
        return float(self.max_samples) if self.unit == "record" else 1.0

    @property
    def max_records(self) -> int | None:
        """The cap on records, or None: the mean of any number of vectors is bounded."""
        return self.max_samples or None

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of the count, the mean and the second moments; their squares add up to 1."""
        left = 1.0 - self.count_share
        return (
            math.sqrt(self.count_share),
            math.sqrt(left * (1.0 - self.covariance_share)),
            math.sqrt(left * self.covariance_share),
        )

    def broadcast(
        self,
        centre: npt.NDArray[Any],
        basis: npt.NDArray[Any] | None = None,
        *,
        shift: npt.NDArray[Any] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """What the server sends.

        Args:
            centre: (k,) what is subtracted, in the coordinates of the basis.
            basis: (k, d) what embeddings are projected on; None for their own coordinates.
            shift: (k,) what is subtracted after the first clip, before a second one.
        """
        given = {"centre": centre, "basis": basis, "shift": shift}
        return {name: one.astype(np.float32) for name, one in given.items() if one is not None}

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse a centre, a basis or a shift of another shape than the users' embeddings."""
        basis = broadcast.get("basis")
        k = len(basis) if basis is not None and basis.ndim else dimension
        forms: dict[str, Form] = {
            "centre": ((k,), ("f",)),
            "basis": ((max(1, min(k, dimension)), dimension), ("f",)),
            "shift": ((k,), ("f",)),
        }
        check_arrays(self.name, broadcast, forms, optional=("basis", "shift"))
        if self.answer_length(broadcast) > _MOST_NUMBERS:
            raise ValueError(f"{self.name} answers at most {_MOST_NUMBERS} numbers: project")

    def answer_length(self, broadcast: Broadcast) -> int:
        """The numbers of the blocks that have a weight."""
        return int(self.columns(len(broadcast["centre"]))[2].stop)

    def columns(self, dimensions: int) -> tuple[slice, slice, slice]:
        """Where count, mean and second moments are in an answer; empty where they have no weight.

        Args:
            dimensions: k.
        """
        w0, w1, w2 = self.weights
        widths = (int(w0 > 0), dimensions * (w1 > 0), dimensions * (dimensions + 1) // 2 * (w2 > 0))
        ends = np.cumsum(widths).tolist()
        return tuple(slice(end - width, end) for end, width in zip(ends, widths, strict=True))  # type: ignore[return-value]

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Float64Array:
        """The vectors of all users, (num_users, answer_length)."""
        means = user_means(
            cohort,
            lambda records: self._vectors(records, broadcast),
            width=self.answer_length(broadcast),
            block_numbers=_BLOCK_NUMBERS,
        )
        if self.unit == "record":
            means *= np.bincount(cohort.owners, minlength=cohort.num_users)[:, None]
        return means

    def _vectors(self, records: npt.NDArray[Any], broadcast: Broadcast) -> Float64Array:
        """One vector of norm 1 at most per record, (n, answer_length)."""
        points = clipped_points(records, broadcast, radius=self.radius)
        points /= self.radius
        w0, w1, w2 = self.weights
        k = points.shape[1]
        count, mean, second = self.columns(k)
        rows = np.empty((len(points), second.stop), dtype=np.float64)
        rows[:, count] = w0
        if w1 > 0:
            np.multiply(points, w1, out=rows[:, mean])
        if w2 > 0:
            first, other, scale = _triangle(k)
            products = points[:, first]
            products *= points[:, other]
            np.multiply(products, w2 * scale, out=rows[:, second])
        return rows


def clipped_points(
    embeddings: npt.NDArray[Any], broadcast: Broadcast, *, radius: float
) -> Float64Array:
    """Embeddings in the coordinates of a broadcast, no farther from its centre than the radius.

    Args:
        embeddings: (n, d) real, finite, of float32's range.
        broadcast: as `Moments` is asked with.
        radius: c.

    Returns:
        (n, k) float64 of norm c at most, up to rounding. A row is the same bits whatever rows
        stand beside it: projected without rounding (`exact_product`), then elementwise.
    """
    basis = broadcast.get("basis")
    if basis is None:
        points = embeddings.astype(np.float64)
    else:
        points = exact_product(embeddings, _right_factor(basis))
    points -= broadcast["centre"].astype(np.float64)
    _clip(points, radius)
    if "shift" in broadcast:
        points -= broadcast["shift"].astype(np.float64)
        _clip(points, radius)
    return points


def symmetric(triangle: npt.NDArray[Any]) -> Float64Array:
    """The symmetric matrix of a triangle whose off-diagonal numbers are times sqrt(2).

    Args:
        triangle: (k (k + 1) / 2,).

    Returns:
        (k, k) float64.
    """
    k = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
    first, other, scale = _triangle(k)
    matrix = np.empty((k, k), dtype=np.float64)
    matrix[first, other] = triangle / scale
    matrix[other, first] = matrix[first, other]
    return matrix


_right_factor = once_per_array(RightFactor.of)


@lru_cache(maxsize=8)
def _triangle(k: int) -> tuple[IntArray, IntArray, Float64Array]:
    """Rows and columns of the upper triangle, and what its numbers are multiplied by."""
    first, other = np.triu_indices(k)
    return first, other, np.where(first == other, 1.0, math.sqrt(2.0))


def _clip(points: Float64Array, radius: float) -> None:
    """Bring rows to norm `radius` at most, in place; direction is kept."""
    norms = np.sqrt(squared_norms(points))
    points /= np.maximum(norms / radius, 1.0)[:, None]
