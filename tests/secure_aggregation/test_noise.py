"""Noise in shares: the lemma of secure_aggregation/terms.py, its variance, and its last digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.privacy import SecureRandom
from flower_privsyn.privacy.mechanisms import GRID, STEPS
from flower_privsyn.privacy.randomness import InsecureRandom
from flower_privsyn.secure_aggregation.server import ServerRound
from flower_privsyn.secure_aggregation.terms import LEAST_STEPS, Terms
from tests.support.attacks import refuted
from tests.support.secure import Protocol


def pmf_of_sum(deviation: float, nodes: int) -> np.ndarray:
    """The law of a sum of rounded normal variates, by convolution, around 0."""
    reach = math.ceil(12 * deviation) + 2
    edges = np.arange(-reach, reach + 2) - 0.5
    one = np.diff(stats.norm.cdf(edges / deviation))
    total = np.ones(1)
    for _ in range(nodes):
        total = np.convolve(total, one)
    return total


def delta_of(pmf: np.ndarray, shift: int, epsilon: float) -> float:
    """The hockey-stick divergence between a law on whole numbers and itself, moved."""
    here = np.concatenate([pmf, np.zeros(shift)])
    there = np.concatenate([np.zeros(shift), pmf])
    return float(np.maximum(here - math.exp(epsilon) * there, 0.0).sum())


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """Of the Gaussian mechanism (Balle and Wang 2018)."""
    half, ratio = 0.5 / multiplier, epsilon * multiplier
    return float(stats.norm.cdf(half - ratio) - math.exp(epsilon) * stats.norm.cdf(-half - ratio))


class TestLemma:
    @pytest.mark.parametrize("deviation", [0.5, 1.0, 4.0])
    @pytest.mark.parametrize("nodes", [2, 5, 12])
    def test_delta_is_at_most_the_gaussians(self, deviation: float, nodes: int) -> None:
        pmf, whole = pmf_of_sum(deviation, nodes), deviation * math.sqrt(nodes)
        for shift in (1, 2, max(3, round(whole))):
            for epsilon in (0.1, 0.5, 1.0, 2.0):
                expected = gaussian_delta(whole / shift, epsilon)
                assert delta_of(pmf, shift, epsilon) <= expected + 1e-12

    def test_a_sum_of_rounded_variates_is_one_rounded_variate_and_uniform_ones(self) -> None:
        """Against the density of N + U + V by its characteristic function, at the least noise."""
        for nodes in (2, 3, 9):
            pmf = pmf_of_sum(LEAST_STEPS, nodes)
            places = np.arange(len(pmf)) - len(pmf) // 2
            waves = np.linspace(-3.0, 3.0, 6001)
            of_sum = np.exp(-nodes * (LEAST_STEPS * waves) ** 2 / 2)
            of_sum *= np.sinc(waves / (2 * np.pi)) ** nodes
            density = (of_sum * np.cos(np.outer(places, waves))).sum(axis=1) * 1e-3 / (2 * np.pi)
            assert np.abs(pmf - density).max() < 1e-14


def decoded(terms: Terms, honest: int, deviation: float, numbers: int, seed: int) -> np.ndarray:
    """What a server decodes that colludes with c nodes and loses all but t, in the unit of the sum.

    Real masks over real shares; the colluding nodes answer without noise and take what they know
    away again. Nobody's user has an answer.
    """
    steps = deviation * terms.noise_share * STEPS
    values = {}
    for name in range(1, terms.least_nodes + 1):
        noise = np.zeros(numbers, dtype=np.int64)
        if name <= honest:
            noise = InsecureRandom(seed + name).rounded_normal(steps, numbers)
        values[name] = noise.view(np.uint64)
    protocol = Protocol(values, terms)
    protocol.show_keys(values)
    server: ServerRound = protocol.give_shares(values)
    protocol.answer(server, values)
    protocol.sign(server, values)
    protocol.uncover(server, values)
    return server.total().view(np.int64) * GRID


TERMS = Terms(least_nodes=5, colluding=2)


def test_variance_at_exactly_t_less_c_honest_nodes() -> None:
    released = decoded(TERMS, TERMS.honest, 3.0, 400_000, seed=0)
    assert released.std() == pytest.approx(3.0, rel=4 / math.sqrt(2 * released.size))
    assert abs(released.mean()) < 4 * 3.0 / math.sqrt(released.size)
    # One honest node fewer, and it would be noticed.
    fewer = decoded(TERMS, TERMS.honest - 1, 3.0, 400_000, seed=9)
    assert fewer.std() < 3.0 * 0.83


def test_no_sum_is_refuted_by_its_last_digits() -> None:
    """The attack on the bits of floats, on sums of nodes' noise."""
    numbers, deviation = 4000, 0.75
    truth = np.arange(numbers) % 5
    steps = deviation * TERMS.noise_share * STEPS

    def released_numbers() -> np.ndarray:
        shares = [SecureRandom().rounded_normal(steps, numbers) for _ in range(TERMS.honest)]
        return truth + np.sum(shares, axis=0) * GRID

    released = (released_numbers(), released_numbers())
    sums = (truth.astype(np.float64), truth.astype(np.float64))
    wrong = (sums[0] + 1.0, sums[1])
    assert refuted(released, sums, wrong, deviation) == 0
