"""How near the distribution of synthetic text is to that of private text, on embeddings.

All functions take two matrices of embeddings, the synthetic one first, from one embedding model;
the figures of different models cannot be compared. They return `NotPrivate` records: the second
matrix is private text.

Papers:
    Heusel et al., "GANs Trained by a Two Time-Scale Update Rule ..." (NIPS 2017): the Fréchet
        distance; Chong and Forsyth, "Effectively Unbiased FID ..." (CVPR 2020): its bias.
    Pillutla et al., "MAUVE: Measuring the Gap Between Neural Text and Human Text ..." (NeurIPS
        2021) and "MAUVE Scores for Generative Models" (JMLR 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.result import NotPrivate
from flower_privsyn.models.library import import_extra

Matrix = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

#: Sample sizes, as shares of all texts, through which the distance is extrapolated.
_SHARES = (0.5, 0.6, 0.75, 1.0)

#: c in exp(-c KL) of MAUVE, as in the papers.
_SCALING = 5.0

#: Share of the variance that MAUVE's projection keeps.
_VARIANCE_KEPT = 0.9

#: Subsets drawn at each of these sizes; their distances are averaged.
_DRAWS = 4


@dataclass(frozen=True, kw_only=True)
class FrechetDistance(NotPrivate):
    """Squared Fréchet (2-Wasserstein) distance of the Gaussians fitted to two sets: "FID".

    The estimate is biased upwards by sampling, by an amount that falls as 1 / texts: two samples of
    the same distribution are at a distance above zero, and a method that wrote fewer texts looks
    worse. Compare figures at equal numbers of texts only, or compare `extrapolated`.

    Attributes:
        squared: the plain estimate, >= 0, in squared units of the embeddings.
        extrapolated: the estimate continued to infinitely many texts by a straight line in
            1 / texts, without most of the bias; it has more variance and can be below zero. With no
            more texts than dimensions the bias is no straight line, and part of it stays.
    """

    squared: float
    extrapolated: float


@dataclass(frozen=True, kw_only=True)
class Mauve(NotPrivate):
    """Area under the divergence curve of two quantised distributions, in (0, 1], 1 for equal ones.

    The number depends on the features, the number of clusters, the scaling and the number of
    texts; it can be compared with another only where all of them agree. Published scores use
    GPT-2-large features.

    Attributes:
        score: MAUVE as first defined (2021).
        smoothed: MAUVE* (2023): half a text is added to every cluster of both sets, which removes
            most of the dependence on the number of texts.
    """

    score: float
    smoothed: float


def gaussian_frechet(
    mean: Matrix, covariance: Matrix, other_mean: Matrix, other_covariance: Matrix
) -> float:
    """Squared Fréchet distance of two Gaussians.

    |m - m'|^2 + tr S + tr S' - 2 tr (S S')^(1/2). The last trace is the sum of the singular values
    of R R' for symmetric roots R and R', which needs no inverse and no root of a matrix that is
    not symmetric: covariances of any rank are handled, and nothing is added to their diagonals.

    Args:
        mean: (d,).
        covariance: (d, d) symmetric; eigenvalues below zero by rounding count as zero.
        other_mean: (d,).
        other_covariance: (d, d).

    Returns:
        The squared distance, >= 0.

    Raises:
        ConfigError: A value is not finite.

    References:
        Dowson and Landau, "The Fréchet distance between multivariate normal distributions" (1982).
    """
    first, second = (np.asarray(item, dtype=np.float64) for item in (mean, other_mean))
    spread, other = (np.asarray(item, dtype=np.float64) for item in (covariance, other_covariance))
    if not all(np.isfinite(item).all() for item in (first, second, spread, other)):
        raise ConfigError("moments must be finite")
    overlap = np.linalg.svd(_root(spread) @ _root(other), compute_uv=False).sum()
    difference = first - second
    squared = difference @ difference + np.trace(spread) + np.trace(other) - 2.0 * overlap
    return max(0.0, float(squared))


def frechet_distance(synthetic: Matrix, private: Matrix, *, seed: int = 0) -> FrechetDistance:
    """Squared Fréchet distance between two sets of embeddings.

    Args:
        synthetic: (n, d), n >= 4.
        private: (m, d), m >= 4.
        seed: of the subsets that the extrapolation looks at.
    """
    first, second = (np.asarray(rows, dtype=np.float64) for rows in (synthetic, private))
    generator = np.random.default_rng(seed)
    inverses, distances = [], []
    for share in _SHARES:
        for _ in range(_DRAWS if share < 1.0 else 1):
            subsets = [_draw(rows, share, generator) for rows in (first, second)]
            inverses.append(1.0 / share)
            means = [rows.mean(axis=0) for rows in subsets]
            spreads = [np.atleast_2d(np.cov(rows, rowvar=False)) for rows in subsets]
            distances.append(gaussian_frechet(means[0], spreads[0], means[1], spreads[1]))
    weights = np.array([1.0 if inverse > 1.0 else _DRAWS for inverse in inverses])
    # Weights of polyfit multiply residuals, not their squares.
    _, intercept = np.polyfit(inverses, distances, deg=1, w=np.sqrt(weights))
    return FrechetDistance(squared=distances[-1], extrapolated=float(intercept))


def mauve(synthetic: Matrix, private: Matrix, *, seed: int = 0) -> Mauve:
    """MAUVE of two sets of features, our implementation of the published definition.

    Features are scaled to unit length, projected on the principal components that hold 90 % of the
    variance of both sets together, and quantised by k-means over both sets (5 starts) into a tenth
    as many clusters as the smaller set has texts; the curve has 25 points and c = 5, as in the
    authors' package.

    Args:
        synthetic: (n, d), n >= 2.
        private: (m, d), m >= 2.
        seed: of k-means.

    Raises:
        MissingExtraError: Scikit-learn is not installed.

    References:
        Pillutla et al. 2021, section 2 and appendix; 2023, section 4 for the smoothing.
    """
    first, second = (np.asarray(rows, dtype=np.float64) for rows in (synthetic, private))
    clusters = max(2, round(min(len(first), len(second)) / 10))
    labels = _quantise(np.concatenate([first, second]), clusters, seed)
    counts = [
        np.bincount(part, minlength=clusters).astype(np.float64)
        for part in (labels[: len(first)], labels[len(first) :])
    ]
    return Mauve(
        score=divergence_area(*(part / part.sum() for part in counts)),
        smoothed=divergence_area(*((part + 0.5) / (part + 0.5).sum() for part in counts)),
    )


def divergence_area(p: Matrix, q: Matrix, *, points: int = 25) -> float:
    """Area under the curve (exp(-c KL(q | r)), exp(-c KL(p | r))) over mixtures r of p and q.

    Args:
        p: (k,) probabilities.
        q: (k,) probabilities.
        points: mixtures on the curve; its two ends, on the axes, are added.

    Returns:
        In [0, 1]; the same with p and q exchanged.
    """
    share = np.linspace(1e-6, 1.0 - 1e-6, points)[:, None]  # (points, 1)
    mixtures = share * p + (1.0 - share) * q  # (points, k)
    x = np.concatenate([[1.0], np.exp(-_SCALING * rel_entr(q, mixtures).sum(axis=1)), [0.0]])
    y = np.concatenate([[0.0], np.exp(-_SCALING * rel_entr(p, mixtures).sum(axis=1)), [1.0]])
    return float(((x[:-1] - x[1:]) * (y[:-1] + y[1:])).sum() / 2.0)


def library(module: str) -> Any:
    """A module of scikit-learn.

    Raises:
        MissingExtraError: It is not installed.
    """
    return import_extra(module, needed_by="comparing texts", extra="evaluation")


# ---------------------------------------------------------------------- parts


def _root(covariance: Float64Array) -> Float64Array:
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2.0)
    root: Float64Array = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def _draw(rows: Float64Array, share: float, generator: np.random.Generator) -> Float64Array:
    if share == 1.0:
        return rows
    return rows[generator.permutation(len(rows))[: max(2, round(share * len(rows)))]]


def _quantise(rows: Float64Array, clusters: int, seed: int) -> npt.NDArray[np.int64]:
    unit = library("sklearn.preprocessing").normalize(rows)
    distinct = len(np.unique(unit.round(9), axis=0))
    if distinct == 1:
        return np.zeros(len(rows), dtype=np.int64)
    components = library("sklearn.decomposition").PCA(_VARIANCE_KEPT, svd_solver="full")
    means = library("sklearn.cluster").KMeans(
        n_clusters=min(clusters, distinct), n_init=5, max_iter=500, random_state=seed % 2**32
    )
    return np.asarray(means.fit_predict(components.fit_transform(unit)), dtype=np.int64)
