"""Plain reckonings for noise that is correlated across rounds."""

from __future__ import annotations

import numpy as np

from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    Factorisation,
    TreeAggregation,
)


def worst_deviation(noise: np.ndarray, covariance: np.ndarray) -> float:
    """The largest difference of a sample covariance, in its standard errors."""
    runs = noise.shape[1]
    sample = noise @ noise.T / runs
    variances = np.diag(covariance)
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / runs)
    return float(np.abs((sample - covariance) / errors).max())


def turns(rounds: int, gap: int) -> list[tuple[int, ...]]:
    """The sets of rounds, from 0, that users may take part in: those of each group."""
    return [tuple(range(first, rounds, gap)) for first in range(min(gap, rounds))]


def strategy_matrix(factorisation: Factorisation) -> np.ndarray:
    """C, (innovations, rounds): of trees which rounds each node sums up, level by level."""
    if not isinstance(factorisation, TreeAggregation):
        assert isinstance(factorisation, BandedToeplitz | BufferedLinearToeplitz)
        lags = np.subtract.outer(np.arange(factorisation.rounds), np.arange(factorisation.rounds))
        return np.where(lags >= 0, factorisation.series[lags], 0.0)
    blocks, first = [], 0
    for leaves in factorisation.trees:
        for level in range(leaves.bit_length()):
            nodes = np.zeros((leaves >> level, factorisation.rounds))
            covered = np.arange((leaves >> level) << level)
            nodes[covered >> level, first + covered] = 1.0
            blocks.append(nodes)
        first += leaves
    return np.concatenate(blocks)


def noise_matrix(factorisation: Factorisation) -> np.ndarray:
    """D, (rounds, innovations), with D C = I."""
    strategy = strategy_matrix(factorisation)
    if not isinstance(factorisation, TreeAggregation):
        return np.linalg.inv(strategy)
    matrix = np.zeros((factorisation.rounds, len(strategy)))
    first = base = 0
    for leaves in factorisation.trees:
        offsets = base + np.cumsum([0, *(leaves >> level for level in range(leaves.bit_length()))])
        for number in range(1, leaves + 1):
            # The total after a round is read off the fewest nodes that make it up.
            for sign, total in ((1.0, number), (-1.0, number - 1)):
                for level in (level for level in range(total.bit_length()) if total >> level & 1):
                    matrix[first + number - 1, offsets[level] + (total >> level) - 1] += sign
        first, base = first + leaves, offsets[-1]
    return matrix


def prefix_std(factorisation: Factorisation) -> np.ndarray:
    """(rounds,) the standard deviation of the noise in the sum of the rounds so far."""
    total = np.cumsum(noise_matrix(factorisation), axis=0)
    return np.asarray(np.linalg.norm(total, axis=1))
