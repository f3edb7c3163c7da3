"""Where the noise comes from."""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.privacy import _checks

_TWO_TO_MINUS_53 = 2.0**-53


class RandomSource(Protocol):
    """What a mechanism needs from a generator of random numbers."""

    @property
    def name(self) -> str:
        """A short name for logs, such as ``"os.urandom"``."""

    @property
    def secure(self) -> bool:
        """Whether an observer of the outputs learns nothing about other outputs."""

    def normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return independent draws from the standard normal distribution, ``shape`` float64."""

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return ``n`` independent draws, uniform over 0 .. 2^64 - 1."""


class SecureRandom:
    """Randomness from the operating system, fetched afresh on every call.

    Normal variates come from the Box-Muller transform of uniforms with 53 random bits, so that no
    draw lies beyond 8.58 standard deviations. The normal law has 1e-17 of its mass out there: per
    coordinate and release the missing tail adds at most about e^epsilon times that to delta.

    Note:
        The variates are double precision floats. Like every floating-point sampler, this one is
        not protected against attacks on the pattern of representable values (Mironov 2012, "On
        significance of the least significant bits for differential privacy").
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
        n = _checks.whole("n", n, low=0)
        return np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64)

    def normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return independent draws from the standard normal distribution.

        Args:
            shape: The shape of the result.

        Returns:
            ``shape`` float64, no two calls related.

        References:
            Box and Muller 1958, "A Note on the Generation of Random Normal Deviates".
        """
        size = math.prod((shape,) if isinstance(shape, int) else shape)
        pairs = (size + 1) // 2
        bits = self.uint64(2 * pairs) >> np.uint64(11)  # (2 pairs,), 53 bits each
        # 1 is added under the logarithm so that it never sees zero.
        radius = np.sqrt(-2.0 * np.log((bits[:pairs].astype(np.float64) + 1.0) * _TWO_TO_MINUS_53))
        angle = (2.0 * np.pi * _TWO_TO_MINUS_53) * bits[pairs:].astype(np.float64)
        draws = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
        return draws[:size].reshape(shape)


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
        self._generator = np.random.Generator(np.random.PCG64(_checks.whole("seed", seed, low=0)))

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return the next ``n`` draws of the stream, uniform over 0 .. 2^64 - 1, (n,) uint64."""
        n = _checks.whole("n", n, low=0)
        return self._generator.integers(0, 2**64, size=n, dtype=np.uint64)

    def normal(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return the next standard normal draws of the stream, ``shape`` float64."""
        return self._generator.standard_normal(shape)
