"""A question of a server, as nodes get it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_privsyn.messages import wire
from flower_privsyn.privacy import GaussianMechanism, PoissonSampling
from flower_privsyn.queries import NearestNeighborHistogram

DATA = wire.DataRequest(
    embedding_model="all-MiniLM-L6-v2",
    embedding_precision="float32",
    max_tokens=64,
    max_samples=8,
    newer_than="",
    held_out_fraction=0.1,
    seed=3,
)


def ask(**changes: Any) -> wire.Ask:
    values: dict[str, Any] = {
        "round_number": 4,
        "query": NearestNeighborHistogram(max_samples=5, clip="l2"),
        "broadcast": {"candidates": np.eye(3, dtype=np.float32)},
        "data": DATA,
        "sampling": PoissonSampling(rate=0.25, population=40),
        "sampling_key": b"k" * 32,
        "mechanism": GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=5.0),
        "num_rounds": 6,
        **changes,
    }
    return wire.Ask(**values)
