"""A black-box audit: what an attacker proves of epsilon by many releases."""

from __future__ import annotations

import numpy as np
from scipy import stats

from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    Release,
    calibrate_noise_multiplier,
    release_epsilon,
)
from flower_privsyn.queries import Query

DELTA = 1e-5


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
            l2_sensitivity=query.clip_norm,
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
