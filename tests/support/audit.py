"""A black-box audit: what an attacker proves of epsilon by a million trials."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    NeighboringRelation,
    Release,
    calibrate_noise_multiplier,
    release_epsilon,
)
from flower_privsyn.queries import Query

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


def assert_audit_comes_near(
    query: Query, present: np.ndarray, absent: np.ndarray, *, epsilon: float, runs: int
) -> None:
    """Between 0.9 of the claimed epsilon and it, and above it with a tenth less noise.

    By the trade-off of Gaussian noise (Nasr et al. 2023): one threshold bounds the whole.

    Args:
        query: whose answers are audited.
        present: the sum with the worst user in it.
        absent: the sum without.
        epsilon: claimed, at `DELTA`.
        runs: how many releases of each the attacker sees.
    """
    direction = present - absent

    def bound(noise_multiplier: float) -> float:
        mechanism = GaussianMechanism(
            noise_multiplier=noise_multiplier,
            l2_sensitivity=query.sensitivity(NeighboringRelation.ZERO_OUT),
        )
        random, positive = InsecureRandom(6), []
        for total in (present, absent):
            released = mechanism.release(np.tile(total, runs), random=random)
            seen = (released.reshape(runs, -1) - absent) @ direction
            positive.append(int((seen > 0.5 * (direction @ direction)).sum()))
        hits, alarms = positive
        true = stats.beta.ppf(0.0005, hits, runs - hits + 1)
        false = stats.beta.ppf(0.9995, alarms + 1, runs - alarms)
        apart = float(stats.norm.ppf(true) - stats.norm.ppf(false))
        release = Release(noise_multiplier=1.0 / apart, sampling=FullParticipation())
        return release_epsilon({release: 1}, delta=DELTA)

    multiplier = calibrate_noise_multiplier(
        epsilon=epsilon, delta=DELTA, rounds=1, sampling=FullParticipation()
    )
    assert 0.9 * epsilon <= bound(multiplier) <= epsilon
    assert bound(0.9 * multiplier) > epsilon
