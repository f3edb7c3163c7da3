"""Arrays are named by all of their content."""

from __future__ import annotations

import numpy as np
from flwr.app import Array

from flower_privsyn.messages.wire import content_digest

VALUES = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float16)


def test_a_digest_depends_on_everything() -> None:
    changed = VALUES.copy()
    changed[3, 3] += 1
    variants = [
        VALUES,
        changed,
        VALUES.astype(np.float32),
        VALUES.reshape(6, 40),
        VALUES.view(np.int16),
        VALUES[:-1],
    ]
    assert len({content_digest(Array(values)) for values in variants}) == len(variants)
    array: Array = Array(VALUES)
    assert content_digest(array) == content_digest(array) == content_digest(Array(VALUES))
