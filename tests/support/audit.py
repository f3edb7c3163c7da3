"""A black-box audit: what an attacker proves of epsilon by a million trials."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

TRIALS = 1_000_000


DELTA = 1e-5


def epsilon_lower_bound(present: np.ndarray, absent: np.ndarray, threshold: float) -> float:
    """Return the epsilon that holds with 99.9 % confidence (Clopper and Pearson 1934)."""
    hits, false_alarms = int((present > threshold).sum()), int((absent > threshold).sum())
    confidence = 0.9995  # two bounds, 0.05 % each
    true_positive = stats.beta.ppf(1.0 - confidence, hits, present.size - hits + 1)
    false_positive = stats.beta.ppf(confidence, false_alarms + 1, absent.size - false_alarms)
    if not true_positive > DELTA:
        return 0.0
    return float(max(0.0, math.log((true_positive - DELTA) / false_positive)))


def best_threshold(mean: float, deviation: float) -> float:
    """Return the threshold with the largest expected bound, from theory: fixed before the data."""

    def expected(threshold: float) -> float:
        hits = TRIALS * stats.norm.sf((threshold - mean) / deviation)
        alarms = TRIALS * stats.norm.sf(threshold / deviation)
        low = max(1e-12, (hits - 3.3 * math.sqrt(hits)) / TRIALS - DELTA)
        high = (alarms + 3.3 * math.sqrt(alarms) + 5.0) / TRIALS
        return math.log(low / high)

    return max(np.linspace(-2 * deviation, mean + 5 * deviation, 2000), key=expected)
