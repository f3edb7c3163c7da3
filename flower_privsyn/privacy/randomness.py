"""Where the noise comes from."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.privacy.rounded_normal import rounded_normal


class RandomSource(Protocol):
    """What a mechanism needs from a generator of random numbers."""

    @property
    def name(self) -> str:
        """A short name for logs, such as ``"os.urandom"``."""

    @property
    def secure(self) -> bool:
        """Whether an observer of the outputs learns nothing about other outputs."""

    def rounded_normal(self, standard_deviation: float, size: int) -> NDArray[np.int64]:
        """Return ``size`` draws from N(0, ``standard_deviation``^2), rounded: (size,) int64."""

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` independent draws, uniform over 0 .. 2^64 - 1."""


class SecureRandom:
    """Randomness from the operating system, fetched afresh on every call.

    Normal variates are drawn as whole numbers, each with its own probability (`rounded_normal`):
    there are no floats whose pattern could tell one sum from another.
    """

    name = "os.urandom"
    secure = True

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` independent draws, uniform over 0 .. 2^64 - 1.

        Args:
            n: How many, at least 0.

        Returns:
            (n,) uint64.
        """
        n = check_whole("n", n, ge=0)
        return np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64, copy=False)

    def rounded_normal(self, standard_deviation: float, size: int) -> NDArray[np.int64]:
        """Return independent draws from N(0, s^2), rounded to whole numbers.

        Args:
            standard_deviation: s, in whole numbers, in [2^-4, 2^58].
            size: How many, at least 0.

        Returns:
            (size,) int64, no two calls related.

        Raises:
            ConfigError: The standard deviation is out of range.
        """
        return rounded_normal(standard_deviation, size, self.uint64)


class InsecureRandom:
    """Reproducible randomness for tests and demonstrations.

    Anyone who knows or guesses the seed can subtract the noise, so a release made with this
    source carries no privacy guarantee and the ledger says so.

    Args:
        seed: At least 0; equal seeds give equal streams.
    """

    name = "numpy PCG64, seeded"
    secure = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(check_whole("seed", seed, ge=0)))

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return the next ``n`` draws of the stream, uniform over 0 .. 2^64 - 1, (n,) uint64."""
        n = check_whole("n", n, ge=0)
        return self._generator.integers(0, 2**64, size=n, dtype=np.uint64)

    def rounded_normal(self, standard_deviation: float, size: int) -> NDArray[np.int64]:
        """Return the next rounded normal draws; see `SecureRandom.rounded_normal`."""
        return rounded_normal(standard_deviation, size, self.uint64)
