"""Which candidates survive a release."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.strategies._evolution import ranked, resampled

VOTES = np.array([1.0, 9.0, 4.0, 9.0, -3.0])


def chooser(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_rank_takes_the_first_of_the_best_once_each() -> None:
    assert ranked(VOTES, keep=3).tolist() == [0, 1, 1, 1, 0]
    assert ranked(VOTES, keep=1).tolist() == [0, 1, 0, 0, 0]
    # Candidates without votes survive too: there is no threshold.
    assert ranked(-VOTES, keep=2).tolist() == [1, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="6 of 5 candidates"):
        ranked(VOTES, keep=6)


def test_resampling_is_in_proportion_to_the_votes_above_the_threshold() -> None:
    counts = resampled(VOTES, keep=60_000, threshold=1.0, chooser=chooser())
    assert counts is not None
    assert counts.sum() == 60_000
    assert np.allclose(counts / 60_000, np.array([0, 8, 3, 8, 0]) / 19, atol=0.01)
    counts = resampled(VOTES, keep=4, threshold=8.5, chooser=chooser())
    assert counts is not None
    assert counts[1] + counts[3] == 4
    assert resampled(VOTES, keep=4, threshold=9.0, chooser=chooser()) is None
