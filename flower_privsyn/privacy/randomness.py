"""Where the noise comes from: normal variates rounded to whole numbers, and sources of randomness.

Every whole number has its own probability. A normal variate made of floats can take only the values
that its formula reaches. The transform of Box and Muller makes two variates of 106 random bits: on
a grid of 2^30 steps per standard deviation most pairs of grid points are out of its reach, and a
pair that is out of reach refutes whatever sum it would follow from. Rounding such a variate does
not mend that. This sampler draws the whole number itself, from as many random bits as it takes.
"""

from __future__ import annotations

import decimal
import math
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError

Words = Callable[[int], NDArray[np.uint64]]
"""From n to (n,) independent uniform 64-bit words."""

LARGEST_STD = 2.0**58
"""Largest standard deviation: fourteen of them stay below 2^62."""

SMALLEST_STD = 2.0**-4
"""Smallest standard deviation; below, nearly every draw is zero and nearly every try is refused."""

_ONE = np.uint64(1)
_TRIES = 2**17  # tries made at a time: the arrays of one pass stay in the cache


def rounded_normal(standard_deviation: float, size: int, words: Words) -> NDArray[np.int64]:
    """Draw normal variates, rounded to the nearest whole number.

    The absolute value of a normal variate is (j + x) B for a power of two B, a whole number j and x
    uniform in [0, 1): j is drawn with probability in proportion to exp(-(j B)^2 / 2 s^2), x is 63
    random bits, and the pair is kept with probability exp(-x (2 j + x) B^2 / 2 s^2). The bits of x
    above the point are the whole number itself, so every whole number within 13 standard
    deviations is reached, whatever the size of the standard deviation.

    Formal guarantee:
        The law of the whole number k is that of rint(N(0, s^2)): each value has the probability of
        the interval k +- 1/2, to a relative error below 2^-44 within 8 standard deviations, from
        the float64 exponential and the 64 bits it is compared with; draws are independent. Of the
        mass beyond 13 standard deviations, below 2^-122, a part is missing.

    Args:
        standard_deviation: s, in whole numbers, in [2^-4, 2^58].
        size: How many, at least 0.
        words: The source of randomness.

    Returns:
        (size,) int64.

    Raises:
        ConfigError: The standard deviation is out of range.

    References:
        Karney 2016, "Sampling Exactly from the Normal Distribution", algorithm N, with a table for
        its first step and the width of its second fitted to the grid.
    """
    if not SMALLEST_STD <= standard_deviation <= LARGEST_STD:
        raise ConfigError(
            "the standard deviation of noise must be between 2^-4 and 2^58 steps of the grid, got "
            f"{standard_deviation:g}."
        )
    drawn = np.empty(size, dtype=np.int64)
    done = 0
    while done < size:
        kept = _kept(standard_deviation, min(_TRIES, 64 + (3 * (size - done)) // 2), words)
        kept = kept[: size - done]
        drawn[done : done + len(kept)] = kept
        done += len(kept)
    return drawn


def _kept(standard_deviation: float, tries: int, words: Words) -> NDArray[np.int64]:
    """Make tries and return those that are kept, in order."""
    bits = max(0, math.frexp(standard_deviation)[1] - 1)  # B = 2^bits, at most s where s >= 1
    squared = math.ldexp(1.0 / standard_deviation, bits) ** 2  # (B / s)^2
    block = _block(words, tries, squared)  # (tries,) j
    second = words(tries)
    fraction = (second >> _ONE).astype(np.int64)  # 63 bits of x
    x = fraction.astype(np.float64)
    x *= 2.0**-63
    exponent = x + 2.0 * block
    exponent *= x
    exponent *= -0.5 * squared
    chance = words(tries).astype(np.float64)  # in steps of 2^-64
    chance *= 2.0**-64
    keep = np.flatnonzero(chance < np.exp(exponent))
    # rint(x B): the bits above the point, and one more to round with.
    rounded = ((fraction[keep] >> np.int64(62 - bits)) + 1) >> 1
    rounded += block[keep] << np.int64(bits)
    sign = 1 - 2 * (second[keep] & _ONE).astype(np.int64)
    return rounded * sign


def _block(words: Words, tries: int, squared: float) -> NDArray[np.int64]:
    """Draw j >= 0 with probability in proportion to exp(-j^2 ``squared`` / 2).

    j is how many of the tail probabilities lie above a uniform number of 128 bits. Its second 64
    bits are needed only where the first 64 agree with those of a tail, once in 10^18 draws.
    """
    high, low = _tails(squared)
    uniform = words(tries)
    if not len(high):  # so narrow that no other block has a chance of 2^-128
        return np.zeros(tries, dtype=np.int64)
    place = np.searchsorted(high, uniform, side="right")
    block = (len(high) - place).astype(np.int64)
    for index in np.flatnonzero((place > 0) & (high[place - 1] == uniform)):
        second = words(1)[0]
        first = uniform[index]
        block[index] = np.count_nonzero((first < high) | ((first == high) & (second < low)))
    return block


@lru_cache(maxsize=64)
def _tails(squared: float) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """P(J >= j) for j = 1, 2, ... in 128 bits, rising: the high and the low 64 bits of each."""
    with decimal.localcontext(decimal.Context(prec=80)):
        half = decimal.Decimal(squared) / 2
        weights: list[decimal.Decimal] = []
        while not weights or weights[-1] > decimal.Decimal(2) ** -160:
            weights.append((-half * len(weights) ** 2).exp())
        total = sum(weights)
        tails = [int(sum(weights[j:]) / total * 2**128) for j in range(1, len(weights))]
    tails = sorted(tail for tail in tails if tail)
    high = np.array([tail >> 64 for tail in tails], dtype=np.uint64)
    low = np.array([tail & (2**64 - 1) for tail in tails], dtype=np.uint64)
    return high, low


class RandomSource(Protocol):
    """What a mechanism needs from a generator of random numbers."""

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
