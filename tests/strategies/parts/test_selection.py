"""Which candidates survive a release."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.strategies.parts.selection import Rank, Resample

VOTES = np.array([1.0, 9.0, 4.0, 9.0, -3.0])


def chooser(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_rank_takes_the_first_of_the_best_once_each() -> None:
    counts = Rank().counts(VOTES, keep=3, noise_std=2.0, chooser=chooser())
    assert counts is not None
    assert counts.tolist() == [0, 1, 1, 1, 0]
    one = Rank().counts(VOTES, keep=1, noise_std=0.0, chooser=chooser())
    assert one is not None
    assert one.tolist() == [0, 1, 0, 0, 0]
    # The noise decides among candidates without votes too: there is no threshold.
    low = Rank().counts(-VOTES, keep=2, noise_std=100.0, chooser=chooser())
    assert low is not None
    assert low.tolist() == [1, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="6 of 5 candidates"):
        Rank().counts(VOTES, keep=6, noise_std=0.0, chooser=chooser())


def test_resampling_is_in_proportion_to_the_votes_above_the_threshold() -> None:
    rule = Resample(threshold=0.5, unit="noise-std")
    counts = rule.counts(VOTES, keep=60_000, noise_std=2.0, chooser=chooser())
    assert counts is not None
    assert counts.sum() == 60_000
    assert np.allclose(counts / 60_000, np.array([0, 8, 3, 8, 0]) / 19, atol=0.01)
    in_votes = Resample(threshold=8.5, unit="votes")
    counts = in_votes.counts(VOTES, keep=4, noise_std=100.0, chooser=chooser())
    assert counts is not None
    assert counts[1] + counts[3] == 4
    nothing = Resample(threshold=9.0, unit="votes")
    assert nothing.counts(VOTES, keep=4, noise_std=0.0, chooser=chooser()) is None
