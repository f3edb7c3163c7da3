"""A black-box audit: an attacker with the best test, a million trials on neighbouring inputs.

The attacker sees only released vectors. Both sides are tested: the lower bound on epsilon must not
exceed what is claimed, and must reach 0.6 of it, because an attack that finds nothing proves
nothing. The streams are seeded, so that the 0.1 % of unlucky audits do not fail at random.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    RandomSource,
    Release,
    calibrate_noise_multiplier,
    release_epsilon,
)
from tests.support.audit import DELTA, TRIALS, best_threshold, epsilon_lower_bound

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


@pytest.mark.parametrize("rounds", [1, 4])
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
