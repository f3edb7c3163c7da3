"""The law of the noise, number by number, with tests that are shown to have power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import InsecureRandom, RandomSource, SecureRandom
from flower_privsyn.privacy.randomness import LARGEST_STD, SMALLEST_STD, rounded_normal

DRAWS = 1_000_000
SOURCES = [SecureRandom(), InsecureRandom(7)]


def g_test(draws: np.ndarray, *, scale: float) -> float:
    """P-value of whole numbers against rint(N(0, scale^2)): one bin a number, or 400 of them."""
    farthest = math.ceil(4.5 * scale)
    width = max(1, 2 * farthest // 400)
    edges = np.arange(-farthest, farthest + width, width) - 0.5  # between whole numbers
    law = np.diff(stats.norm.cdf(edges, scale=scale), prepend=0.0, append=1.0)
    law[0], law[-1] = stats.norm.cdf(edges[0], scale=scale), stats.norm.sf(edges[-1], scale=scale)
    seen = np.bincount(np.searchsorted(edges, draws), minlength=len(law))
    return float(stats.power_divergence(seen, law * len(draws), lambda_="log-likelihood").pvalue)


@pytest.mark.parametrize("scale", [SMALLEST_STD, 0.07, 0.1])
def test_noise_narrower_than_a_step_is_rounded_away(scale: float) -> None:
    draws = InsecureRandom(5).rounded_normal(scale, 2000)
    assert np.abs(draws).max() <= 1
    assert abs((draws != 0).mean() - 2 * stats.norm.sf(0.5 / scale)) < 1e-3


@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 2.0, 3.7, 8.0, 100.0, 1e4])
def test_every_number_has_its_probability_and_the_test_would_notice_five_percent(
    scale: float,
) -> None:
    draws = InsecureRandom(7).rounded_normal(scale, DRAWS)
    assert draws.dtype == np.int64
    assert g_test(draws, scale=scale) > 1e-6
    assert g_test(draws, scale=1.05 * scale) < 1e-6


def test_the_operating_systems_bits_give_the_same_law() -> None:
    assert g_test(SecureRandom().rounded_normal(8.0, DRAWS), scale=8.0) > 1e-6


@pytest.mark.parametrize("scale", [1.37 * 2.0**30, 2.0**45, 1.99 * 2.0**53, 2.0**58])
def test_wide_noise_is_normal_down_to_its_last_bits(scale: float) -> None:
    draws = InsecureRandom(8).rounded_normal(scale, DRAWS)
    uniform = stats.norm.cdf(draws / scale)
    counts = np.bincount((uniform * 256).astype(int).clip(0, 255), minlength=256)
    assert stats.power_divergence(counts, lambda_="log-likelihood").pvalue > 1e-6
    # What a float with 53 bits would have lost.
    last = np.bincount(draws & 255, minlength=256)
    assert stats.power_divergence(last, lambda_="log-likelihood").pvalue > 1e-6
    pairs = np.bincount((draws[:-1] & 15) * 16 + (draws[1:] & 15), minlength=256)
    assert stats.power_divergence(pairs, lambda_="log-likelihood").pvalue > 1e-6


def test_the_tails() -> None:
    draws = np.abs(InsecureRandom(9).rounded_normal(2.0**30, 4 * DRAWS)) / 2.0**30
    for threshold in (2.0, 3.0, 4.0, 5.0):
        expected = 2.0 * stats.norm.sf(threshold)
        seen = int((draws > threshold).sum())
        assert stats.binomtest(seen, len(draws), expected).pvalue > 1e-6


class Words:
    """The words of one draw, in the order in which the sampler asks for them."""

    def __init__(self, high: int, low: int, second: int) -> None:
        self._low = low
        self._words = [high, second, 0]

    def __call__(self, n: int) -> np.ndarray:
        # One word at a time: the second half of a uniform number whose first half decides nothing.
        word = self._low if n == 1 else self._words.pop(0)
        return np.full(n, word, dtype=np.uint64)


@pytest.mark.parametrize("scale", [1.0, 2.0**30, 1.9 * 2.0**40])
@pytest.mark.parametrize("deviations", [0.0, 1e-9, 0.5, 3.0, 8.5, 12.0, 12.9])
def test_every_number_within_twelve_standard_deviations_is_reached(
    scale: float, deviations: float
) -> None:
    """The words that give it are written down: none of the 10^12 numbers is skipped."""
    bits = math.frexp(scale)[1] - 1
    for number in {round(deviations * scale) + step for step in (0, 1, 2, 12345)}:
        if number > 13.0 * scale:
            continue
        block, inside = divmod(number, 1 << bits)
        x = inside << (63 - bits)
        squared = math.ldexp(1.0 / scale, bits) ** 2
        # A uniform number below P(J >= block), and above P(J >= block + 1).
        tail = sum(math.exp(-0.5 * squared * j * j) for j in range(block, block + 60))
        total = sum(math.exp(-0.5 * squared * j * j) for j in range(60))
        uniform = int(min(tail / total, 1.0 - 2.0**-53) * 0.9 * 2**128)
        high, low = uniform >> 64, uniform & (2**64 - 1)
        assert rounded_normal(scale, 1, Words(high, low, x << 1)).tolist() == [number]


def test_draws_are_unrelated_within_and_across_calls() -> None:
    random = SecureRandom()
    first = random.rounded_normal(2.0**30, DRAWS) / 2.0**30
    second = random.rounded_normal(2.0**30, DRAWS) / 2.0**30
    half = DRAWS // 2
    pairs = {
        "calls": (first, second),
        "neighbours": (first[:-1], first[1:]),
        "halves": (first[:half], first[half:]),
        "squares of the halves": (first[:half] ** 2, first[half:] ** 2),
    }
    for name, (left, right) in pairs.items():
        assert abs(np.corrcoef(left, right)[0, 1]) < 6.0 / np.sqrt(left.size), name


@pytest.mark.parametrize("random", SOURCES, ids=lambda r: type(r).__name__)
def test_sizes_and_range(random: RandomSource) -> None:
    for size in (0, 1, 7, 1000):
        assert random.rounded_normal(5.0, size).shape == (size,)
    for scale in (0.0, SMALLEST_STD / 2, LARGEST_STD * 2, math.nan, math.inf):
        with pytest.raises(ConfigError, match="standard deviation of noise must be between"):
            random.rounded_normal(scale, 1)
