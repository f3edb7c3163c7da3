"""Mechanisms, sampling, accounting and the ledger: everything that makes a release private.

Knows no messages, no models and no text. The accountant library is imported on first use.
"""

from flower_privsyn.privacy.clipping import clip_rows
from flower_privsyn.privacy.mechanisms import GaussianMechanism
from flower_privsyn.privacy.randomness import InsecureRandom, RandomSource, SecureRandom
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import (
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
)

__all__ = [
    "FixedSizeSampling",
    "FullParticipation",
    "GaussianMechanism",
    "InsecureRandom",
    "NeighboringRelation",
    "PoissonSampling",
    "RandomSource",
    "Sampling",
    "SecureRandom",
    "clip_rows",
]
