"""Where randomness comes from: fair bits, and who may call themselves secure."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import InsecureRandom, SecureRandom


def test_every_bit_of_the_integers_is_fair() -> None:
    words = SecureRandom().uint64(200_000)
    assert words.dtype == np.uint64
    bits = np.unpackbits(words.view(np.uint8)).reshape(-1, 64)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 6.0 * 0.5 / np.sqrt(len(words))


def test_only_the_operating_system_counts_as_secure() -> None:
    assert SecureRandom().secure
    assert not InsecureRandom(1).secure
    first = InsecureRandom(1).rounded_normal(100.0, 9)
    assert (first == InsecureRandom(1).rounded_normal(100.0, 9)).all()
    again = InsecureRandom(1)
    assert (again.rounded_normal(100.0, 9) != again.rounded_normal(100.0, 9)).any()
    assert (SecureRandom().rounded_normal(1e9, 9) != SecureRandom().rounded_normal(1e9, 9)).any()
    with pytest.raises(ConfigError, match=r"seed must be .* got -1"):
        InsecureRandom(-1)
