"""The noise of a release: its size, its independence, and what is refused."""

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


@pytest.mark.parametrize(("noise_multiplier", "l2_sensitivity"), [(11.3, 8.0), (0.3, 1e-3)])
def test_a_release_carries_multiplier_times_sensitivity(
    noise_multiplier: float, l2_sensitivity: float
) -> None:
    mechanism = GaussianMechanism(noise_multiplier=noise_multiplier, l2_sensitivity=l2_sensitivity)
    noise = mechanism.release(np.zeros(DRAWS), random=InsecureRandom(1))
    assert mechanism.standard_deviation == pytest.approx(noise_multiplier * l2_sensitivity)
    assert_standard_deviation(noise, noise_multiplier * l2_sensitivity)


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("noise_multiplier", -0.1),
        ("noise_multiplier", math.nan),
        ("l2_sensitivity", 0.0),
        ("l2_sensitivity", math.inf),
    ],
)
def test_a_mechanism_names_the_value_that_is_wrong(key: str, value: object) -> None:
    arguments = {"noise_multiplier": 1.0, "l2_sensitivity": 1.0, key: value}
    with pytest.raises(ConfigError, match=rf"^{key} must be .*, got {value!r}$"):
        GaussianMechanism(**arguments)  # type: ignore[arg-type]
