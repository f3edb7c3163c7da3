"""Candidates of a malicious server: which of them are near a tie hangs on the last bit."""

from __future__ import annotations

import numpy as np


def ladder(count: int, record: np.ndarray) -> np.ndarray:
    """(count, d) float32, on a line through the origin; the last is nearest to the record.

    How much nearer is what a float32 product can just tell. Whether another one counts as tied with
    it is therefore decided by the last bit of that product, unless the record and the candidates
    alone decide.

    Args:
        count: candidates, at least 2.
        record: (d,) of length 1.
    """
    generator = np.random.default_rng(7)
    line = np.abs(generator.standard_normal(len(record))) * np.sign(record)
    line /= np.linalg.norm(line)
    reach = (len(record) + 3) * 2.0**-22 * 2**0.5 / float(line @ record)
    steps = 1.0 - reach + (np.arange(count) - count // 2) * 2.0**-25
    steps[-1] = 1.0
    return (steps[:, None] * line).astype(np.float32)
