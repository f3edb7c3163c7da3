"""Mechanisms, sampling, accounting and the ledger: everything that makes a release private.

May import no other room: it knows no messages, no models and no text, neither Flower nor PyTorch.
The accountant library is imported on first use.
"""

from flower_privsyn.privacy.accounting import Release, ReleaseSpec, both_epsilons, release_epsilon
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
    squared_norms,
)
from flower_privsyn.privacy.plan import Phase, Plan, calibrate_noise_multiplier
from flower_privsyn.privacy.randomness import InsecureRandom, RandomSource, SecureRandom
from flower_privsyn.privacy.sampling import (
    CyclicSampling,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
)

__all__ = [
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
    "both_epsilons",
    "calibrate_noise_multiplier",
    "clip_rows",
    "release_epsilon",
    "squared_norms",
]
