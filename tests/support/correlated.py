"""Plain reckonings for noise that is correlated across rounds."""

from __future__ import annotations

import numpy as np


def worst_deviation(noise: np.ndarray, covariance: np.ndarray) -> float:
    """The largest difference of a sample covariance, in its standard errors."""
    runs = noise.shape[1]
    sample = noise @ noise.T / runs
    variances = np.diag(covariance)
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / runs)
    return float(np.abs((sample - covariance) / errors).max())
