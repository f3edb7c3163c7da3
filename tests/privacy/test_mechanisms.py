"""The noise of a release and of shares: its size, its independence, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import GaussianMechanism, InsecureRandom, SecureRandom

DRAWS = 1_000_000


def assert_standard_deviation(noise: np.ndarray, expected: float) -> None:
    """Within 4 standard errors of a normal sample's standard deviation: 0.28 % at 10^6 draws."""
    error = 4.0 * expected / math.sqrt(2.0 * noise.size)
    assert abs(noise.std() - expected) < error
    assert abs(noise.mean()) < 4.0 * expected / math.sqrt(noise.size)


@pytest.mark.parametrize(
    ("noise_multiplier", "l2_sensitivity"), [(1.0, 1.0), (11.3, 8.0), (0.3, 1e-3), (19.3, 2.5)]
)
def test_a_release_carries_multiplier_times_sensitivity(
    noise_multiplier: float, l2_sensitivity: float
) -> None:
    mechanism = GaussianMechanism(noise_multiplier=noise_multiplier, l2_sensitivity=l2_sensitivity)
    noise = mechanism.release(np.zeros(DRAWS), random=InsecureRandom(1))
    assert mechanism.standard_deviation == pytest.approx(noise_multiplier * l2_sensitivity)
    assert_standard_deviation(noise, noise_multiplier * l2_sensitivity)


def test_the_noise_does_not_depend_on_the_sum() -> None:
    """A sum over 1,000 users gets the noise of a sum over one: nothing divides it."""
    mechanism = GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=8.0)
    total = np.full(DRAWS, 8000.0)
    noise = mechanism.release(total, random=InsecureRandom(2)) - total
    assert_standard_deviation(noise, 16.0)


def test_the_noise_is_fresh_in_every_call_and_coordinate() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0)
    random = SecureRandom()
    first = mechanism.release(np.zeros(DRAWS), random=random)
    second = mechanism.release(np.zeros(DRAWS), random=random)
    third = mechanism.share(np.zeros(DRAWS), num_shares=1, of=1, random=random)
    for left, right in ((first, second), (second, third), (first[:-1], first[1:])):
        assert abs(np.corrcoef(left, right)[0, 1]) < 6.0 / math.sqrt(DRAWS)
        assert (left != right).mean() > 0.999


@pytest.mark.parametrize(("num_shares", "of"), [(1, 1000), (7, 100), (100, 100), (150, 100)])
def test_shares_carry_their_part_of_the_variance(num_shares: int, of: int) -> None:
    mechanism = GaussianMechanism(noise_multiplier=3.0, l2_sensitivity=2.0)
    noise = mechanism.share(np.zeros(DRAWS), num_shares=num_shares, of=of, random=InsecureRandom(3))
    assert_standard_deviation(noise, 6.0 * math.sqrt(num_shares / of))


def test_shares_from_unequal_nodes_add_up_to_one_release() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.5, l2_sensitivity=4.0)
    random = InsecureRandom(4)
    total = sum(
        mechanism.share(np.ones(DRAWS), num_shares=users, of=20, random=random)
        for users in (1, 2, 3, 4, 10, 0)
    )
    assert_standard_deviation(total - 6.0, 6.0)


def test_no_shares_add_no_noise() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.5, l2_sensitivity=4.0)
    partial = np.arange(5.0)
    noisy = mechanism.share(partial, num_shares=0, of=20, random=SecureRandom())
    assert (noisy == partial).all()


def test_one_share_alone_is_weaker_by_the_root_of_their_number() -> None:
    mechanism = GaussianMechanism(noise_multiplier=19.3, l2_sensitivity=1.0)
    assert mechanism.share_noise_multiplier(of=1000) == pytest.approx(19.3 / math.sqrt(1000))


def test_zero_noise_returns_the_sum_exactly_and_leaves_the_input_alone() -> None:
    mechanism = GaussianMechanism(noise_multiplier=0.0, l2_sensitivity=8.0)
    total = np.arange(6, dtype=np.int64)
    released = mechanism.release(total, random=SecureRandom())
    assert released.dtype == np.float64
    assert (released == total).all()
    kept = np.ones(4)
    GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0).release(kept, random=SecureRandom())
    assert (kept == 1.0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sum_that_is_not_finite_is_refused_without_saying_where(bad: float) -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0)
    total = np.array([1.0, bad, 3.0])
    with pytest.raises(ConfigError, match=r"^total must be finite, got a vector with NaN"):
        mechanism.release(total, random=SecureRandom())
    with pytest.raises(ConfigError, match=r"^partial must be finite"):
        mechanism.share(total, num_shares=1, of=1, random=SecureRandom())


@pytest.mark.parametrize(
    "total", [np.zeros((2, 2)), np.float64(1.0), np.array(["a"]), np.array([1j]), np.array([None])]
)
def test_a_sum_that_is_no_real_vector_is_refused(total: np.ndarray) -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0)
    with pytest.raises(ConfigError, match="total must be a real vector of one dimension"):
        mechanism.release(total, random=SecureRandom())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("noise_multiplier", -0.1),
        ("noise_multiplier", math.nan),
        ("noise_multiplier", math.inf),
        ("noise_multiplier", "1"),
        ("noise_multiplier", True),
        ("l2_sensitivity", 0.0),
        ("l2_sensitivity", -1.0),
        ("l2_sensitivity", math.inf),
        ("l2_sensitivity", None),
    ],
)
def test_a_mechanism_names_the_value_that_is_wrong(key: str, value: object) -> None:
    arguments = {"noise_multiplier": 1.0, "l2_sensitivity": 1.0, key: value}
    with pytest.raises(ConfigError, match=rf"^{key} must be .*, got {value!r}\.$"):
        GaussianMechanism(**arguments)  # type: ignore[arg-type]


def test_shares_too_small_for_the_grid_are_refused() -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=2.0**-18)
    with pytest.raises(ConfigError, match="a share of the noise has standard deviation"):
        mechanism.share(np.zeros(2), num_shares=1, of=100, random=SecureRandom())
    assert mechanism.share(np.zeros(2), num_shares=1, of=2, random=SecureRandom()).any()


@pytest.mark.parametrize(
    ("num_shares", "of", "key"), [(-1, 5, "num_shares"), (1, 0, "of"), (1.5, 5, "num_shares")]
)
def test_share_counts_are_checked(num_shares: int, of: int, key: str) -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0)
    with pytest.raises(ConfigError, match=rf"^{key} must be a whole number"):
        mechanism.share(np.zeros(2), num_shares=num_shares, of=of, random=SecureRandom())
