"""Cohorts: the right law, independent of nodes and order, and described without loss."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    InsecureRandom,
    PoissonSampling,
    Sampling,
    SecureRandom,
)

IDS = [f"user-{number}" for number in range(20_000)]
KEY = bytes(range(32))


def test_every_user_has_the_rate_over_rounds_and_rounds_are_unrelated() -> None:
    """Coins of one user over keys: the mean is the rate, and the cohort size is binomial."""
    ids, rate, rounds = IDS[:200], 0.3, 2_000
    generator = np.random.default_rng(5)
    coins = np.array(
        [PoissonSampling(rate).participants(ids, key=generator.bytes(32)) for _ in range(rounds)]
    )
    error = math.sqrt(rate * (1.0 - rate) / rounds)
    assert np.abs(coins.mean(axis=0) - rate).max() < 5.0 * error
    sizes = coins.sum(axis=1)
    assert sizes.var() == pytest.approx(200 * rate * (1.0 - rate), rel=0.2)
    assert abs(np.corrcoef(coins[:-1].ravel(), coins[1:].ravel())[0, 1]) < 5e-3 * 2


def test_a_coin_depends_on_user_and_key_only() -> None:
    sampling = PoissonSampling(0.4)
    together = dict(zip(IDS[:500], sampling.participants(IDS[:500], key=KEY), strict=True))
    backwards = sampling.participants(IDS[:500][::-1], key=KEY)[::-1]
    assert (backwards == list(together.values())).all()
    for user in IDS[:20]:
        assert sampling.participants([user], key=KEY)[0] == together[user]
    other = sampling.participants(IDS[:500], key=KEY[::-1])
    assert 0.3 < (other == list(together.values())).mean() < 0.7


def test_rate_one_and_full_participation_take_everybody() -> None:
    assert PoissonSampling(1.0).participants(IDS[:9], key=KEY).all()
    assert FullParticipation().participants(IDS[:9], key=KEY).all()
    assert PoissonSampling(0.5).participants([], key=KEY).shape == (0,)


@pytest.mark.parametrize("count", [0, 1, 17, 50])
def test_fixed_size_draws_exactly_the_count(count: int) -> None:
    sampling = FixedSizeSampling(17, population=20_000)
    chosen = sampling.participants(IDS[:50], key=KEY, count=count)
    assert chosen.sum() == count
    shuffled = sampling.participants(IDS[:50][::-1], key=KEY, count=count)
    assert (shuffled[::-1] == chosen).all()


def test_fixed_size_gives_every_user_the_same_chance() -> None:
    ids, count, rounds = IDS[:40], 10, 3_000
    sampling = FixedSizeSampling(10, population=40)
    generator = np.random.default_rng(6)
    seen = sum(
        sampling.participants(ids, key=generator.bytes(16), count=count).astype(int)
        for _ in range(rounds)
    )
    error = math.sqrt(0.25 * 0.75 / rounds)
    assert np.abs(np.asarray(seen) / rounds - 0.25).max() < 5.0 * error


def test_allocation_is_multivariate_hypergeometric() -> None:
    heads, size, rounds = [5, 20, 0, 75], 30, 4_000
    sampling = FixedSizeSampling(size, population=100)
    random = InsecureRandom(8)
    drawn = np.array([sampling.allocate(heads, random) for _ in range(rounds)])
    assert (drawn.sum(axis=1) == size).all()
    assert (drawn <= heads).all()
    share = np.array(heads) / 100
    mean = size * share
    variance = size * share * (1 - share) * (100 - size) / 99
    error = np.sqrt(variance / rounds)
    assert (np.abs(drawn.mean(axis=0) - mean) <= 5.0 * error + 1e-12).all()
    assert drawn.var(axis=0) == pytest.approx(variance, rel=0.15)


def test_a_smaller_population_than_accounted_is_refused() -> None:
    sampling = FixedSizeSampling(10, population=100)
    with pytest.raises(FederationError, match=r"hold 99 users .* population of 100"):
        sampling.allocate([50, 49], SecureRandom())
    assert sum(sampling.allocate([50, 60], SecureRandom()) or []) == 10


@pytest.mark.parametrize(
    "sampling",
    [
        FullParticipation(),
        FullParticipation(1000),
        PoissonSampling(0.013888888888888888, population=72_000),
        PoissonSampling(0.1),
        FixedSizeSampling(1000, population=72_000),
    ],
)
def test_descriptions_survive_json(sampling: Sampling) -> None:
    description = json.loads(json.dumps(sampling.to_dict()))
    assert {"method", "population"} < set(description)
    again = Sampling.from_dict(description)
    assert again == sampling
    assert hash(again) == hash(sampling)
    assert again.rate == sampling.rate


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan, None, "0.1"])
def test_rates_are_checked(rate: object) -> None:
    with pytest.raises(ConfigError, match="rate must be a number between 5.42101e-20 and 1, got"):
        PoissonSampling(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "population", "key"),
    [
        (0, 10, "sample_size"),
        (11, 10, "sample_size"),
        (1, 0, "population"),
        (1.5, 9, "sample_size"),
    ],
)
def test_sizes_are_checked(size: int, population: int, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} must be"):
        FixedSizeSampling(size, population=population)


def test_keys_and_counts_are_checked() -> None:
    fixed = FixedSizeSampling(2, population=3)
    for key in (b"", b"short", os.urandom(65), "text-of-sixteen-characters"):
        with pytest.raises(ConfigError, match="key must be 16 to 64 bytes"):
            PoissonSampling(0.5).participants(["a"], key=key)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="count must be given"):
        fixed.participants(["a"], key=KEY)
    with pytest.raises(ConfigError, match="count must be a whole number between 0 and 1, got 2"):
        fixed.participants(["a"], key=KEY, count=2)
    with pytest.raises(ConfigError, match="head_counts must be"):
        fixed.allocate([-1, 4], SecureRandom())
