"""Distances between sets of embeddings, by scikit-learn, never as one whole matrix."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import MissingExtraError

Float64Array = npt.NDArray[np.float64]

#: MiB of one block of pairwise distances.
_BLOCK_MIB = 64


def library(module: str) -> Any:
    """A module of scikit-learn, or of SciPy, which it brings.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            "comparing texts needs scikit-learn: pip install 'flower-privsyn[evaluation]'"
        ) from error


def squared_distances(points: Float64Array, targets: Float64Array) -> Iterator[Float64Array]:
    """Squared Euclidean distances in blocks of whole rows.

    Args:
        points: (n, d).
        targets: (m, d).

    Yields:
        (rows, m), for some of the points, in their order.
    """
    blocks: Iterator[Float64Array] = library("sklearn.metrics").pairwise_distances_chunked(
        points, targets, metric="euclidean", squared=True, working_memory=_BLOCK_MIB
    )
    return blocks


def neighbor_distances(points: Float64Array, k: int, *, metric: str) -> Float64Array:
    """The distance of each point to its k-th nearest among the others.

    Args:
        points: (n, d), n > k.
        k: >= 1.
        metric: "sqeuclidean" or "cosine".

    Returns:
        (n,).
    """
    found = library("sklearn.neighbors").NearestNeighbors(
        n_neighbors=k, metric=metric, algorithm="brute"
    )
    distances: Float64Array = found.fit(points).kneighbors()[0]
    return distances[:, -1]
