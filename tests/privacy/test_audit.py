"""A black-box audit: an attacker with the best test, a million trials on neighbouring inputs.

The attacker sees only released vectors. Both sides are tested: the lower bound on epsilon must not
exceed what is claimed, and must reach 0.6 of it, because an attack that finds nothing proves
nothing. The streams are seeded, so that the 0.1 % of unlucky audits do not fail at random.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    RandomSource,
    Release,
    calibrate_noise_multiplier,
    release_epsilon,
)

TRIALS = 1_000_000
DELTA = 1e-5
L2_SENSITIVITY = 8.0


def scores(
    mechanism: GaussianMechanism, contribution: float, rounds: int, random: RandomSource
) -> np.ndarray:
    """Return the attacker's statistic in ``TRIALS`` runs of ``rounds`` releases.

    The worst case is one coordinate: a user whose contribution has the whole norm there. Its
    noise is independent of the other coordinates', so one released vector holds as many
    independent runs as it has coordinates. The privacy loss of Gaussian releases grows with
    their sum.
    """
    others = np.full(TRIALS // 10, 1234.0)
    statistic = np.empty(TRIALS)
    for block in range(10):
        total = np.zeros(TRIALS // 10)
        for _ in range(rounds):
            total += mechanism.release(others + contribution, random=random) - others
        statistic[block * total.size : (block + 1) * total.size] = total
    return statistic


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


@pytest.mark.parametrize("rounds", [1, 11])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_claimed_epsilon_is_neither_broken_nor_out_of_reach(
    epsilon: float, rounds: int
) -> None:
    multiplier = calibrate_noise_multiplier(
        epsilon=epsilon, delta=DELTA, rounds=rounds, sampling=FullParticipation()
    )
    mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=L2_SENSITIVITY)
    release = Release(noise_multiplier=multiplier, sampling=FullParticipation())
    claimed = release_epsilon({release: rounds}, delta=DELTA)

    random = InsecureRandom(20)
    present = scores(mechanism, L2_SENSITIVITY, rounds, random)
    absent = scores(mechanism, 0.0, rounds, random)
    threshold = best_threshold(
        rounds * L2_SENSITIVITY, math.sqrt(rounds) * mechanism.standard_deviation
    )
    bound = epsilon_lower_bound(present, absent, threshold)
    assert 0.6 * claimed <= bound <= claimed


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_the_audit_would_notice_half_the_noise(epsilon: float) -> None:
    multiplier = calibrate_noise_multiplier(
        epsilon=epsilon, delta=DELTA, rounds=1, sampling=FullParticipation()
    )
    broken = GaussianMechanism(noise_multiplier=multiplier / 2.0, l2_sensitivity=L2_SENSITIVITY)
    random = InsecureRandom(21)
    bound = epsilon_lower_bound(
        scores(broken, L2_SENSITIVITY, 1, random),
        scores(broken, 0.0, 1, random),
        best_threshold(L2_SENSITIVITY, broken.standard_deviation),
    )
    assert bound > epsilon
