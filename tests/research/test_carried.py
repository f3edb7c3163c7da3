"""What a release carries, where it is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_privsyn import fit
from flower_privsyn.privacy import BandedToeplitz, TreeAggregation
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.factorisation import Factorisation
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import PrivateSumStrategy
from research import carried
from tests.support.text_lengths import AsksLengths


@pytest.mark.parametrize(
    "factorisation", [TreeAggregation(rounds=4), BandedToeplitz.optimal(rounds=9, bands=3)]
)
def test_the_noise_that_correlated_rounds_leave_in_their_sum(factorisation: Factorisation) -> None:
    generator, sums = np.random.default_rng(1), np.zeros(200_000)
    memory: dict[str, np.ndarray] = {}
    for _ in range(factorisation.rounds):
        sums += factorisation.next_noise(generator.standard_normal(sums.size), memory)
    correlation = Correlation(factorisation=factorisation, min_separation=4)
    found = carried.noise_of_sum(correlation, factorisation.rounds)
    assert found == pytest.approx(sums.std(), rel=0.01)


def test_lengths_are_told_from_noise() -> None:
    signal = np.zeros(100_000)
    signal[:10] = 1000.0
    noise = np.random.default_rng(2).normal(0.0, 5.0, signal.size)
    assert carried.length(signal + noise, 5.0) == pytest.approx(np.linalg.norm(signal), rel=0.02)
    assert carried.length(noise, 5.0) is None


@pytest.mark.parametrize("multiplier", [0.0, 2.0])
def test_a_run_carries_its_release(tmp_path: Path, multiplier: float) -> None:
    settings = PrivateSumConfig(
        noise_multiplier=multiplier,
        num_rounds=1,
        max_samples=0,
        accept_noise=True,
        run_dir=str(tmp_path / "run"),
    )
    users = [("a", "short"), ("b", "another text, longer"), ("c", "x" * 99), ("d", "short")]
    fit(users, PrivateSumStrategy(settings, AsksLengths()))
    ((*asked, noise, common),) = carried.carried(tmp_path / "run")
    # Four numbers, four answers of length 3 at most.
    assert asked == ["text_lengths", 1, 4]
    assert noise == pytest.approx(multiplier * 3.0 * 2.0 / (4 * 3.0))
    # Of two users, of none, of one and one: 1 of each says nothing.
    assert common == (None if multiplier else pytest.approx(np.sqrt(2.0) / (4 * 3.0)))
