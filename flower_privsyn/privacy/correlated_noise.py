"""Noise that is correlated over the rounds: what it guarantees, and the stream that makes it.

A round's noise is fresh only in part; the rest takes back noise of earlier rounds. So a single
round says nothing about privacy. All rounds together are one Gaussian mechanism
(`Correlation`), charged as a whole before the first of them is released, and the noise comes
from one stream (`CorrelatedNoise`), which never makes a round twice.
"""

from __future__ import annotations

import math
import re
import secrets
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError, LedgerError
from flower_privsyn.files import os_errors_as, replacing
from flower_privsyn.privacy.factorisation import Factorisation, Memory
from flower_privsyn.privacy.randomness import RandomSource

_STREAM = re.compile(r"[0-9a-f]{32}")

#: Innovations are drawn on a grid of this many steps per standard deviation.
_INNOVATION_STEPS = 2.0**50

#: The last part of every round's noise, in units of the innovations: see `CorrelatedNoise`.
_LAST_PART = 2.0**-10

#: Bits of the last part's standard deviation, in the unit that it is rounded to.
_LAST_PART_BITS = 33


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Rounds whose noise is correlated, as one mechanism.

    Formal guarantee:
        Unit: one user, whose contribution to each round has norm at most that round's clip norm and
        whose rounds are equal modulo ``min_separation``. The noise of round t is clip norm x
        round noise multiplier x (D z)_t with standard normal z. Then all rounds together are
        post-processing of a Gaussian mechanism with noise multiplier round noise multiplier /
        ``sensitivity``, under zero-out and add-remove, and half of it under replace-one. That holds
        against observers who know who took part, and nothing is gained against those who do not.
        The clip norm may differ from round to round and depend on earlier releases: in units of the
        clip norm the mechanism is the same.

    Args:
        factorisation: How the noise is correlated.
        min_separation: Smallest difference of two rounds of one user, at least 1.
        stream: 32 hexadecimal digits, the name of the one stream that makes this noise; by default
            a new one.
        first_round: The number of the first round, at least 0.

    Raises:
        ConfigError: A value is out of range, or the sensitivity is not known.
    """

    factorisation: Factorisation
    min_separation: int = 1
    stream: str = field(default_factory=lambda: secrets.token_hex(16))
    first_round: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.stream, str) or not _STREAM.fullmatch(self.stream):
            raise ConfigError(f"stream must be 32 hexadecimal digits, got {self.stream!r}.")
        check_whole("first_round", self.first_round, ge=0)
        self.factorisation.check(self.min_separation)

    @property
    def last_round(self) -> int:
        """The number of the last round."""
        return self.first_round + self.factorisation.rounds - 1

    @cached_property
    def sensitivity(self) -> float:
        """L2 sensitivity of the encoded rounds, in units of the clip norm."""
        return self.factorisation.sensitivity(self.min_separation)

    def noise_multiplier(self, round_multiplier: float) -> float:
        """Return the noise multiplier of all rounds together.

        Args:
            round_multiplier: Standard deviation of the innovations over the clip norm, at least
                0: what papers on DP-FTRL call the noise multiplier.
        """
        return round_multiplier / self.sensitivity

    def step(self, number: int) -> int:
        """Return the place of a round in the stream, from 1.

        Args:
            number: The round.

        Raises:
            ConfigError: It is none of the rounds.
        """
        number = check_whole("round", number, ge=self.first_round, le=self.last_round)
        return number - self.first_round + 1

    def to_dict(self) -> dict[str, Any]:
        """The correlation as it stands in the ledger."""
        return {
            "stream": self.stream,
            "first_round": self.first_round,
            "sensitivity": self.sensitivity,
            "min_separation": self.min_separation,
            "factorisation": self.factorisation.to_dict(),
        }

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> Correlation:
        """Rebuild a correlation from `to_dict`; the sensitivity is computed anew.

        Raises:
            ConfigError: A value is missing or out of range.
        """
        return Correlation(
            factorisation=Factorisation.from_dict(description["factorisation"]),
            min_separation=description["min_separation"],
            stream=description["stream"],
            first_round=description["first_round"],
        )


class CorrelatedNoise:
    """The noise of one round after the other, as a random source for the Gaussian mechanism.

    In place of independent draws `rounded_normal` returns the noise of the round that was
    prepared, so a round is released by the same `GaussianMechanism.release` as with independent
    noise:

        noise.prepare(round_number, len(total))
        ledger.charge(round=round_number, num_users=num_users)
        values = mechanism.release(total, random=noise)

    The order matters. `prepare` leaves the memory of the stream on the disk; only then does
    the ledger say that the round was released. So whenever a process dies, the memory is as old as
    the last release or younger. A younger one has drawn noise that nobody saw; an older one would
    draw other noise for a round that is out, and is refused. A round that was left out costs its
    noise too: the stream goes on as if its sum had been zero.

    The memory is secret. Together with the releases it gives away the sums of the last rounds; the
    file has mode 0600, belongs where only the server can read, and after the last round holds
    nothing but its number.

    Formal guarantee:
        The noise is D z of `Correlation`, plus in every round a fresh normal variate of a
        thousandth (2^-10) of an innovation's standard deviation, the two added and then rounded to
        the grid: post-processing of the release x + D z, so its accounting holds. The added part,
        5e-7 of the standard deviation, is there for the arithmetic. D z is computed in float64 from
        innovations on a grid of 2^-50, with an error below 2^-40 of an innovation, which by itself
        would leave a pattern in the last digits; under a variate 2^30 times as large it is the
        shift of a Gaussian, and over n numbers released in all rounds it costs no more than a
        Gaussian mechanism of noise multiplier 2^29 / sqrt(n) would. Every point of the grid within
        12 standard deviations can come out.

    Args:
        correlation: The rounds and their correlation.
        random: The source of the innovations.
        path: Where the memory is kept; continued when it exists.

    Raises:
        ConfigError: The file belongs to another stream or cannot be read.
    """

    def __init__(self, correlation: Correlation, *, random: RandomSource, path: Path) -> None:
        self._correlation = correlation
        self._random = random
        self._path = path
        self._memory: Memory = {}
        self._step = 0
        self._size: int | None = None
        self._prepared: NDArray[np.float64] | None = None
        if path.exists():
            self._load(path)

    @property
    def secure(self) -> bool:
        """Whether the source of the innovations is."""
        return self._random.secure

    @property
    def last_round(self) -> int:
        """The last round whose noise was made; one before the first when there is none."""
        return self._correlation.first_round + self._step - 1

    def deviation(self, number: int) -> float:
        """Return the standard deviation of a round's noise in units of the innovations'.

        Args:
            number: The round.
        """
        return float(self._correlation.factorisation.round_std[self._correlation.step(number) - 1])

    def prepare(self, number: int, size: int) -> None:
        """Make the noise of a round and of all rounds before it that were left out.

        The memory is on the disk when this returns.

        Args:
            number: The round, later than all rounds so far.
            size: Length of the release, the same for all rounds.

        Raises:
            ConfigError: The round is none of the stream's, or the size is another one than before.
            LedgerError: The noise of the round was already made, or the memory cannot be written.
        """
        step = self._correlation.step(number)
        size = check_whole("size", size, ge=1)
        if step <= self._step:
            raise LedgerError(
                f"The noise of round {number} was already made; made again, it would not be what "
                "the later rounds take back."
            )
        if self._size is not None and size != self._size:
            raise ConfigError(
                f"The release of round {number} has {size} numbers where the correlated noise is "
                f"for {self._size}."
            )
        self._size = size
        self._prepared = None
        for _ in range(step - self._step):
            innovation = self._innovation(size)
            noise = self._correlation.factorisation.next_noise(innovation, self._memory)
            self._step += 1
        self._save()
        self._prepared = noise

    def rounded_normal(self, standard_deviation: float, size: int) -> NDArray[np.int64]:
        """Return the noise of the prepared round in whole numbers; once.

        Args:
            standard_deviation: Of the innovations, in whole numbers.
            size: As prepared.

        Returns:
            (size,) int64.

        Raises:
            ConfigError: The noise is too large for 64 bits.
            LedgerError: No round is prepared, or for another size.
        """
        noise, self._prepared = self._prepared, None
        if noise is None or len(noise) != size:
            raise LedgerError(
                f"Correlated noise for {size} numbers was asked for and not prepared; every round "
                "has its own, once."
            )
        ideal = noise * standard_deviation
        # A comparison that NaN fails as well: cast to whole numbers it would be no noise at all.
        if not np.abs(ideal).max(initial=0.0) <= 2.0**61:
            raise ConfigError(
                "the noise of a round of correlated noise is too large for the grid: choose a "
                "smaller clip norm or noise multiplier."
            )
        # In parts of a whole number, fine enough for the last part to have all its values.
        last = _LAST_PART * standard_deviation
        bits = max(0, _LAST_PART_BITS - math.frexp(last)[1] + 1)
        whole = np.rint(ideal)
        parts = np.rint((ideal - whole) * 2.0**bits).astype(np.int64)
        parts += self._random.rounded_normal(math.ldexp(last, bits), size)
        half = (1 << bits) >> 1
        return np.asarray(whole.astype(np.int64) + ((parts + half) >> bits))

    def uint64(self, n: int) -> NDArray[np.uint64]:
        """Return (n,) independent draws of the source of the innovations."""
        return self._random.uint64(n)

    def _innovation(self, size: int) -> NDArray[np.float64]:
        """(size,) independent standard normal variates."""
        return self._random.rounded_normal(_INNOVATION_STEPS, size) / _INNOVATION_STEPS

    def _save(self) -> None:
        finished = self._step == self._correlation.factorisation.rounds
        kept = {} if finished else self._memory
        memory: dict[str, Any] = {f"memory.{key}": array for key, array in kept.items()}
        unwritable = f"{self._path} cannot be written"
        with (
            os_errors_as(LedgerError, unwritable),
            replacing(self._path, for_the_owner=True) as file,
        ):
            np.savez(
                file,
                stream=np.array(self._correlation.stream),
                step=np.array(self._step),
                size=np.array(self._size),
                **memory,
            )

    def _load(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
            stream, step, size = (arrays.pop(key) for key in ("stream", "step", "size"))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} is not the memory of correlated noise.") from error
        if str(stream) != self._correlation.stream:
            raise ConfigError(
                f"{path} belongs to the noise stream {stream}, not to {self._correlation.stream}."
            )
        self._step, self._size = int(step), int(size)
        if self._step < self._correlation.factorisation.rounds:
            self._memory = {key.removeprefix("memory."): one for key, one in arrays.items()}
