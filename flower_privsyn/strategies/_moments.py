"""Released moments at the server: Fréchet distances to any text, all of it post-processing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import OrZero, PositiveInt
from flower_privsyn.data import public_texts
from flower_privsyn.embedding import Embedder
from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.evaluation.distribution import gaussian_frechet
from flower_privsyn.files import replacing
from flower_privsyn.generation.backends import derive_seed
from flower_privsyn.progress import Progress
from flower_privsyn.queries import Moments
from flower_privsyn.queries.moments import clipped_points, symmetric
from flower_privsyn.run.method import SumOfUsers, added_up
from flower_privsyn.run.settings import PrivateSumConfig

Matrix = npt.NDArray[Any]

Float64Array = npt.NDArray[np.float64]

#: In a run directory, the coordinates.
SPACE_FILE: Final = "moments_space.npz"

#: Above it the noise of a covariance is as large as half of what it says, and a warning is due.
WARN_ABOVE: Final = 0.5

#: Draws of the noise from which the error of a distance is computed.
_REDRAWS: Final = 200


@dataclass(frozen=True, kw_only=True)
class MomentSpace:
    """In what coordinates moments are taken: public, and settled before anybody is asked.

    Attributes:
        centre: (k,) what is subtracted, as it travels.
        basis: (k, d) orthonormal rows, as they travel; None for the embedding's own coordinates.
        radius: c, how far from the centre a record counts.
        public_variances: (k,) of public text in these coordinates, clipped.
    """

    centre: npt.NDArray[np.float32]
    basis: npt.NDArray[np.float32] | None
    radius: float
    public_variances: Float64Array

    @classmethod
    def of_public(
        cls,
        embeddings: Matrix,
        *,
        dimensions: int,
        radius: float,
        precision: str,
    ) -> Self:
        """Settle the coordinates from public text.

        Args:
            embeddings: (n, d) of public texts, n above `dimensions`.
            dimensions: principal components of them, at most d, about their mean; 0 for all numbers
                as they are.
            radius: c; 0 for a ball about the centre with nine tenths of the public texts.
            precision: in which arrays travel; both sides compute with what arrives.
        """
        rows = embeddings.astype(np.float64)
        mean = rows.mean(axis=0)
        basis, centre = None, np.zeros_like(mean)
        if dimensions:
            axes = np.linalg.svd(rows - mean, full_matrices=False)[2][:dimensions]
            # A sign is arbitrary: the largest number of each axis is positive.
            largest = np.abs(axes).argmax(axis=1)
            axes *= np.sign(axes[np.arange(len(axes)), largest])[:, None]
            basis = axes.astype(precision).astype(np.float32)
            centre = basis.astype(np.float64) @ mean
        space = cls(
            centre=centre.astype(precision).astype(np.float32),
            basis=basis,
            radius=radius or 1e6,
            public_variances=np.zeros(len(centre)),
        )
        points = space.points(embeddings)
        if not radius:
            radius = max(1e-6, float(np.quantile(np.linalg.norm(points, axis=1), 0.9)))
            space = replace(space, radius=radius)
            points = space.points(embeddings)
        return replace(space, public_variances=points.var(axis=0))

    @property
    def dimensions(self) -> int:
        """K."""
        return len(self.centre)

    def broadcast(self, query: Moments, *, shift: Matrix | None = None) -> dict[str, Matrix]:
        """What a round sends.

        Args:
            query: the question.
            shift: what the second of two rounds subtracts.
        """
        return query.broadcast(self.centre, self.basis, shift=shift)

    def points(self, embeddings: Matrix, *, shift: Matrix | None = None) -> Float64Array:
        """Embeddings in these coordinates, clipped as the users' are: (n, k).

        Args:
            embeddings: (n, d).
            shift: what is subtracted afterwards, before another clip.
        """
        sent = self.broadcast(Moments(), shift=shift)
        return clipped_points(embeddings, sent, radius=self.radius)

    def save(self, file: Path) -> None:
        """Write the coordinates, so that a resumed run asks in the same."""
        _save(
            file,
            centre=self.centre,
            # A basis of no rows stands for the embedding's own coordinates.
            basis=np.zeros((0, 0), dtype=np.float32) if self.basis is None else self.basis,
            radius=np.array(self.radius),
            variances=self.public_variances,
        )

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            RunDirectoryError: the file is missing or damaged.
        """
        centre, basis, radius, variances = _load(file, "centre", "basis", "radius", "variances")
        return cls(
            centre=centre,
            basis=basis if len(basis) else None,
            radius=float(radius),
            public_variances=variances,
        )


def _save(file: Path, *, for_the_owner: bool = False, **arrays: Matrix) -> None:
    with replacing(file, for_the_owner=for_the_owner) as opened:
        np.savez(opened, allow_pickle=False, **arrays)


def _load(file: Path, *names: str) -> list[Matrix]:
    try:
        with np.load(file) as held:
            return [held[name] for name in names]
    except (OSError, ValueError, KeyError) as error:
        raise RunDirectoryError(f"{file} holds no readable moments: {error}") from error


@dataclass(frozen=True, kw_only=True)
class NoisyMoments:
    """What releases of one question say.

    Attributes:
        mean: (k,); empty where none was asked for.
        mean_noise: standard deviation of each number of it.
        second: (k, k) second moments; None where none were asked for.
        second_noise: standard deviation of their diagonal; off it, it is less by sqrt(2).
        count: users that they are means over, or records; noisy where it was released.
    """

    mean: Float64Array
    mean_noise: float
    second: Float64Array | None
    second_noise: float
    count: float

    @classmethod
    def of(cls, space: MomentSpace, query: Moments, releases: Sequence[SumOfUsers]) -> Self | None:
        """Read one release, or several of the same question; None without any.

        Args:
            space: the coordinates.
            query: the question.
            releases: noisy sums.
        """
        added = added_up(releases)
        if added is None:
            return None
        total, users, noise = added[:3]
        w0, w1, w2 = query.weights
        counted, first, second = query.columns(space.dimensions)
        n = max(1.0, float(total[counted][0]) / w0) if w0 else users
        c, n1, n2 = space.radius, (w1 or 1.0) * n, (w2 or 1.0) * n
        return cls(
            mean=c * total[first] / n1,
            mean_noise=c * noise / n1,
            second=c**2 * symmetric(total[second]) / n2 if w2 else None,
            second_noise=c**2 * noise / n2,
            count=n,
        )


@dataclass(frozen=True, kw_only=True)
class MomentSketch:
    """Mean and covariance of users' text as a federation released them.

    Formal guarantee:
        Post-processing of one or two accounted releases: reading it any number of times costs
        nothing, whatever it is compared with.

    Attributes:
        space: the coordinates.
        mean: (k,) noisy.
        covariance: (k, k) symmetric, noisy; it may have eigenvalues below zero.
        mean_noise: standard deviation of the noise in each number of `mean`.
        covariance_noise: the same of the covariance's diagonal; off it, it is less by sqrt(2).
        count: users that the moments are means over, or records; noisy where it was released.
        two_rounds: whether the covariance is about the released mean, of embeddings that were
            clipped a second time.
    """

    space: MomentSpace
    mean: Float64Array
    covariance: Float64Array
    mean_noise: float
    covariance_noise: float
    count: float
    two_rounds: bool = False

    @classmethod
    def of(
        cls, space: MomentSpace, questions: Sequence[Moments], releases: Sequence[SumOfUsers]
    ) -> Self | None:
        """Read moments of the same releases, or a mean and then second moments about it.

        Args:
            space: the coordinates.
            questions: one; or that of the first release, and that of those after it.
            releases: noisy sums.

        Returns:
            None where a release is missing that is needed.
        """
        first_of = len(releases) if len(questions) == 1 else 1
        first = after = NoisyMoments.of(space, questions[0], releases[:first_of])
        if len(questions) > 1:
            after = NoisyMoments.of(space, questions[1], releases[1:])
        if first is None or after is None or after.second is None:
            return None
        mean, noise, covariance = first.mean, first.mean_noise, after.second
        if after is first:
            # What the noise adds to the square of the mean is known, and is taken off.
            covariance = covariance - np.outer(mean, mean) + noise**2 * np.eye(len(mean))
        return cls(
            space=space,
            mean=mean,
            covariance=covariance,
            mean_noise=noise,
            covariance_noise=after.second_noise,
            count=first.count,
            two_rounds=len(questions) > 1,
        )

    # ------------------------------------------------------------------ what it says

    @property
    def projected(self) -> Float64Array:
        """The nearest covariance there is: eigenvalues below zero become zero."""
        values, vectors = np.linalg.eigh(self.covariance)
        nearest: Float64Array = (vectors * np.maximum(values, 0.0)) @ vectors.T
        return (nearest + nearest.T) / 2.0

    @property
    def noise_ratio(self) -> float:
        """The noise of the covariance over what it says: spectral norm over mean eigenvalue.

        Infinite where nothing is left of the covariance.
        """
        return noise_ratio(float(np.trace(self.projected)), self.covariance_noise, len(self.mean))

    def moments_of(self, embeddings: Matrix) -> tuple[Float64Array, Float64Array]:
        """Mean and covariance of a set of texts, clipped as the users' are.

        Args:
            embeddings: (n, d), n >= 1.
        """
        points = self.space.points(embeddings)
        mean: Float64Array = points.mean(axis=0)
        if self.two_rounds:
            about = self.space.points(embeddings, shift=shift_of(mean, self.space.radius))
            return mean, about.T @ about / len(about)
        return mean, np.cov(points, rowvar=False, bias=True).reshape(len(mean), len(mean))

    def frechet(self, embeddings: Matrix) -> float:
        """Squared Fréchet distance to a set of texts: FreD, >= 0.

        The noise adds the same to the mean's part of every set; to the rest it adds about as much,
        because what the projection onto covariances adds to their trace does not depend on the set.

        Args:
            embeddings: (n, d), n >= 1.
        """
        return gaussian_frechet(*self.moments_of(embeddings), self.mean, self.projected)

    def rank(self, sets: Mapping[str, Matrix], *, seed: int = 0) -> list[dict[str, Any]]:
        """Sets of texts, the nearest first, with what the release's noise may have done to them.

        Args:
            sets: (n, d) embeddings by name, at least one set.
            seed: of the draws of noise.

        Returns:
            Of each set its `name`; how many `texts` were compared; `fred`, the squared Fréchet
            distance, >= 0 (FreD); `mean_part`, its first term, the squared distance of the means;
            `error`, its standard deviation over draws of the release's noise; and `nearest`, in
            which share of these draws it is the nearest set.
        """
        moments = {name: self.moments_of(rows) for name, rows in sets.items()}
        drawn = np.array(
            [
                [gaussian_frechet(*own, noisy.mean, projected) for own in moments.values()]
                for noisy, projected in self._redrawn(seed)
            ]
        )
        nearest = np.bincount(drawn.argmin(axis=1), minlength=len(sets)) / len(drawn)
        projected = self.projected
        found = [
            {
                "name": name,
                "texts": len(sets[name]),
                "fred": gaussian_frechet(*own, self.mean, projected),
                "mean_part": float(((own[0] - self.mean) ** 2).sum()),
                "error": float(drawn[:, place].std(ddof=1)),
                "nearest": float(nearest[place]),
            }
            for place, (name, own) in enumerate(moments.items())
        ]
        return sorted(found, key=lambda one: one["fred"])

    def _redrawn(self, seed: int) -> list[tuple[MomentSketch, Float64Array]]:
        """The release with the noise of other draws on top."""
        generator = np.random.default_rng([seed, 1])
        k, found = len(self.mean), []
        for _ in range(_REDRAWS):
            noise = generator.normal(scale=self.covariance_noise, size=k * (k + 1) // 2)
            noisy = replace(
                self,
                mean=self.mean + generator.normal(scale=self.mean_noise, size=k),
                covariance=self.covariance + symmetric(noise),
            )
            found.append((noisy, noisy.projected))
        return found

    def figures(self) -> dict[str, Any]:
        """What a run says of its release."""
        kept = float(np.trace(self.projected))
        return {
            "dimensions": len(self.mean),
            "radius": self.space.radius,
            "count": self.count,
            "mean_noise": self.mean_noise,
            "covariance_noise": self.covariance_noise,
            # JSON has no infinity: nothing is left of the covariance.
            "noise_ratio": self.noise_ratio if math.isfinite(self.noise_ratio) else None,
            "trace": kept,
            "trace_added": max(0.0, kept - float(np.trace(self.covariance))),
        }

    # ------------------------------------------------------------------ on the disk

    def save(self, folder: Path) -> None:
        """Write `moments.npz`, enough to compare with it elsewhere.

        The released numbers are for the owner alone (mode 0600); who gets them gets the release.
        """
        _save(
            folder / "moments.npz",
            for_the_owner=True,
            mean=self.mean,
            covariance=self.covariance,
            noise=np.array([self.mean_noise, self.covariance_noise, self.count]),
            two_rounds=np.array(self.two_rounds),
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote, and the coordinates beside it.

        Raises:
            RunDirectoryError: a file is missing or damaged.
        """
        names = ("mean", "covariance", "noise", "two_rounds")
        mean, covariance, noise, two_rounds = _load(folder / "moments.npz", *names)
        mean_noise, covariance_noise, count = noise.tolist()
        return cls(
            space=MomentSpace.load(folder / SPACE_FILE),
            mean=mean,
            covariance=covariance,
            mean_noise=mean_noise,
            covariance_noise=covariance_noise,
            count=count,
            two_rounds=bool(two_rounds),
        )


def noise_ratio(trace: float, covariance_noise: float, dimensions: int) -> float:
    """Expected spectral norm of a covariance's noise over its mean eigenvalue.

    The noise is a symmetric matrix with standard deviation s on the diagonal and s / sqrt(2) off
    it, whose spectral norm is sqrt(2 k) s for large k.

    Args:
        trace: of the covariance, >= 0.
        covariance_noise: s.
        dimensions: k.
    """
    if covariance_noise == 0:
        return 0.0
    norm = math.sqrt(2.0 * dimensions) * covariance_noise
    return norm * dimensions / trace if trace > 0 else math.inf


def shift_of(mean: Matrix, radius: float) -> npt.NDArray[np.float32]:
    """A mean as the second round subtracts it: inside the ball where means are, as it travels."""
    inside = mean / max(1.0, float(np.linalg.norm(mean)) / radius)
    return inside.astype(np.float16).astype(np.float32)


#: Public texts that the coordinates are settled from.
SPACE_TEXTS: Final = 2000


@dataclass(frozen=True, kw_only=True)
class MomentSettings(PrivateSumConfig):
    """Settings of a run that may ask for moments, in coordinates that public text settles."""

    moment_dimensions: Annotated[
        PositiveInt, OrZero("all numbers of an embedding, as in the paper")
    ] = 16
    """Principal components of public text in which moments are taken, about its mean. The noise of
    a covariance over what it says grows as their number to the power 1.5: 16 to 32 suit thousands
    of users, all 384 a million. 0, as in the paper: embeddings as they are, with nothing
    subtracted before the clip.
    """


def settled_space(
    folder: Path,
    config: MomentSettings,
    *,
    public_text: str,
    embedder: Embedder,
    progress: Progress,
    radius: float = 0.0,
) -> MomentSpace:
    """The coordinates of a run: read from the run directory, or settled now from public text.

    They are written down because a resumed run must ask in the very coordinates of its releases,
    and embeddings' last digits depend on the machine.

    Args:
        folder: the run directory.
        config: the settings.
        public_text: that they follow from, as settings name it.
        embedder: whose embeddings users are asked about.
        progress: where the work reports.
        radius: how far from the centre an embedding counts; 0 to follow from public text.

    Raises:
        ConfigError: there are not enough public texts for the dimensions, or more dimensions than
            numbers in an embedding.
        DataError: the public texts cannot be read.
        RunDirectoryError: what was written down is damaged.
    """
    file = folder / SPACE_FILE
    if file.exists():
        return MomentSpace.load(file)
    if config.moment_dimensions > embedder.dimension:
        raise ConfigError(
            f"moment-dimensions = {config.moment_dimensions} is more than the "
            f"{embedder.dimension} numbers of an embedding"
        )
    texts = public_texts(
        public_text,
        tokenizer=embedder.tokenizer,
        max_tokens=config.max_tokens,
        fewest=max(2, config.moment_dimensions + 1),
        wanted_by=f"moment-dimensions = {config.moment_dimensions}",
    )
    chooser = np.random.default_rng(derive_seed(config.seed, "moments"))
    drawn = np.sort(chooser.permutation(len(texts))[:SPACE_TEXTS])
    with progress.stage("Coordinates from public text", len(drawn)) as stage:
        embeddings = embedder.embed([texts[place] for place in drawn], progress=stage.update)
    space = MomentSpace.of_public(
        embeddings,
        dimensions=config.moment_dimensions,
        radius=radius,
        precision=config.broadcast_precision,
    )
    space.save(file)
    return space
