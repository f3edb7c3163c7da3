"""Mechanisms, sampling, accounting and the ledger: everything that makes a release private.

Knows no messages, no models and no text. The accountant library is imported on first use.
"""

from flower_privsyn.privacy.accounting import (
    MOST_NODES_PER_USER,
    Release,
    ReleaseSpec,
    known_cohorts_epsilon,
    release_epsilon,
)
from flower_privsyn.privacy.calibration import calibrate_noise_multiplier
from flower_privsyn.privacy.correlated_noise import CorrelatedNoise, Correlation
from flower_privsyn.privacy.factorisation import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    Factorisation,
    TreeAggregation,
)
from flower_privsyn.privacy.ledger import PrivacyLedger
from flower_privsyn.privacy.mechanisms import (
    GaussianMechanism,
    NeighboringRelation,
    clip_rows,
    mechanism_from_dict,
    squared_norms,
)
from flower_privsyn.privacy.plan import MOST_PHASES, Phase, Plan
from flower_privsyn.privacy.randomness import InsecureRandom, RandomSource, SecureRandom
from flower_privsyn.privacy.sampling import (
    CyclicSampling,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
)

__all__ = [
    "MOST_NODES_PER_USER",
    "MOST_PHASES",
    "BandedToeplitz",
    "BufferedLinearToeplitz",
    "CorrelatedNoise",
    "Correlation",
    "CyclicSampling",
    "Factorisation",
    "FixedSizeSampling",
    "FullParticipation",
    "GaussianMechanism",
    "InsecureRandom",
    "NeighboringRelation",
    "Phase",
    "Plan",
    "PoissonSampling",
    "PrivacyLedger",
    "RandomSource",
    "Release",
    "ReleaseSpec",
    "Sampling",
    "SecureRandom",
    "TreeAggregation",
    "calibrate_noise_multiplier",
    "clip_rows",
    "known_cohorts_epsilon",
    "mechanism_from_dict",
    "release_epsilon",
    "squared_norms",
]
