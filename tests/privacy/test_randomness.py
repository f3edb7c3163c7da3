"""The law of the noise: a binned G-test that is shown to have power, and independence."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import InsecureRandom, RandomSource, SecureRandom

DRAWS = 1_000_000


def g_test(draws: np.ndarray, *, scale: float) -> float:
    """Return the p-value of a G-test of ``draws`` against N(0, scale^2) in 200 equal bins."""
    bins = 200
    edges = scale * stats.norm.ppf(np.arange(1, bins) / bins)
    observed = np.bincount(np.searchsorted(edges, draws), minlength=bins)
    return float(stats.power_divergence(observed, lambda_="log-likelihood").pvalue)


@pytest.mark.parametrize("random", [SecureRandom(), InsecureRandom(7)], ids=lambda r: r.name)
def test_the_normal_sampler_is_normal_and_the_test_would_notice_five_percent(
    random: RandomSource,
) -> None:
    draws = random.normal(DRAWS)
    assert draws.dtype == np.float64
    assert g_test(draws, scale=1.0) > 1e-6
    assert g_test(draws, scale=1.05) < 1e-6
    assert g_test(1.05 * draws, scale=1.0) < 1e-6


@pytest.mark.slow
def test_the_normal_sampler_at_ten_million_draws_would_notice_one_percent() -> None:
    draws = np.concatenate([SecureRandom().normal(DRAWS) for _ in range(10)])
    assert g_test(draws, scale=1.0) > 1e-6
    assert g_test(draws, scale=1.01) < 1e-6


def test_the_tails_of_the_normal_sampler() -> None:
    draws = np.abs(SecureRandom().normal(DRAWS))
    for threshold in (2.0, 3.0, 4.0):
        expected = 2.0 * stats.norm.sf(threshold)
        seen = int((draws > threshold).sum())
        assert stats.binomtest(seen, DRAWS, expected).pvalue > 1e-6
    assert draws.max() < 8.6


def test_draws_are_unrelated_within_and_across_calls() -> None:
    random = SecureRandom()
    first, second = random.normal(DRAWS), random.normal(DRAWS)
    half = DRAWS // 2
    pairs = {
        "calls": (first, second),
        "neighbours": (first[:-1], first[1:]),
        # Both members of a Box-Muller pair come from one radius.
        "box-muller": (first[:half], first[half:]),
        "box-muller squares": (first[:half] ** 2, first[half:] ** 2),
    }
    for name, (left, right) in pairs.items():
        assert abs(np.corrcoef(left, right)[0, 1]) < 6.0 / np.sqrt(left.size), name


def test_every_bit_of_the_integers_is_fair() -> None:
    words = SecureRandom().uint64(200_000)
    assert words.dtype == np.uint64
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6.0 * 0.5 / np.sqrt(len(words))


@pytest.mark.parametrize("random", [SecureRandom(), InsecureRandom(7)], ids=lambda r: r.name)
def test_shapes(random: RandomSource) -> None:
    assert random.normal((3, 5)).shape == (3, 5)
    assert random.normal(7).shape == (7,)
    assert random.normal(0).shape == (0,)
    assert random.uint64(0).shape == (0,)


def test_only_the_operating_system_counts_as_secure() -> None:
    assert SecureRandom().secure
    assert not InsecureRandom(1).secure
    assert (InsecureRandom(1).normal(9) == InsecureRandom(1).normal(9)).all()
    again = InsecureRandom(1)
    assert (again.normal(9) != again.normal(9)).all()
    with pytest.raises(ConfigError, match=r"seed must be .* got -1"):
        InsecureRandom(-1)
