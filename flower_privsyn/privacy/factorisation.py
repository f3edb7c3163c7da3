"""Matrices that correlate the noise of different rounds, so that sums over rounds carry less of it.

A model trained on noisy round sums is moved by their running total. Independent noise of every
round piles up in it; noise that later rounds partly take back does not. Such noise is described by
two matrices: C encodes the rounds x into what the privacy rests on, C x + z with independent
normal z, and D reads the rounds off it again, D C = I. What round t releases is

    x_t + (D z)_t,

so all rounds together are post-processing of one Gaussian mechanism with the sensitivity of C.

Here are the C that are lower triangular and Toeplitz, banded or with buffers; binary trees are in
`flower_privsyn.privacy.trees`. Everything is in units of the innovations z. Their standard
deviation, and who may see what, is the business of `flower_privsyn.privacy.correlated_noise`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy._toeplitz import (
    buffer_series,
    filtered,
    impulse,
    inverse_of_buffers,
    momentum_workload,
    optimal_bands,
    optimal_buffers,
)

Vector: TypeAlias = NDArray[np.float64]
#: Draws one innovation vector, standard normal in every coordinate.
Draw: TypeAlias = Callable[[], Vector]

#: Each takes a vector of the rounds to know the sensitivity, and one of the release to make noise.
_MOST_BUFFERS = 16


class Recurrence(ABC):
    """The noise of one round after the other, with the memory that it takes.

    The memory is secret: together with the releases it gives the sums away.
    """

    @abstractmethod
    def next(self, draw: Draw) -> Vector:
        """Return the noise of the next round, in units of the innovations.

        Args:
            draw: Called once or more for fresh innovations, all of one length.

        Returns:
            (m,) float64, an array of its own.
        """

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The memory as named arrays; what `load` takes back."""

    @abstractmethod
    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over a memory; equal innovations then give equal noise."""


@dataclass(frozen=True)
class Factorisation(ABC):
    """How the noise of ``rounds`` rounds is correlated.

    Subclasses: `BandedToeplitz`, `BufferedLinearToeplitz`, `TreeAggregation`.
    """

    name: ClassVar[str]
    _by_name: ClassVar[dict[str, Any]] = {}
    rounds: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have `from_dict` know the class."""
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            Factorisation._by_name[cls.name] = cls

    @cached_property
    @abstractmethod
    def round_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise of each round."""

    @abstractmethod
    def _squared_sensitivity(self, min_separation: int) -> float: ...

    @abstractmethod
    def recurrence(self) -> Recurrence:
        """Return the noise from the first round on."""

    @property
    @abstractmethod
    def buffers(self) -> int:
        """Vectors of the length of the release that are kept from one round to the next."""

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description that `from_dict` reads back: its name and fields."""
        return {"name": self.name, **{key: getattr(self, key) for key in _keys(type(self))}}

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> Factorisation:
        """Rebuild a factorisation from `to_dict`.

        Raises:
            ConfigError: The name is unknown or a value is missing or out of range.
        """
        name = description.get("name")
        known = Factorisation._by_name.get(name) if isinstance(name, str) else None
        if known is None:
            listed = ", ".join(f'"{name}"' for name in Factorisation._by_name)
            raise ConfigError(f"factorisation name must be one of {listed}, got {name!r}.")
        values = {key: description.get(key) for key in _keys(known)}
        for key, value in values.items():
            values[key] = tuple(value) if isinstance(value, list) else value
        found: Factorisation = known(**values)
        return found

    def sensitivity(self, min_separation: int) -> float:
        """Return the largest L2 norm behind C of one user's contributions of norm at most 1.

        Formal guarantee:
            Unit: one user, whose rounds are equal modulo ``min_separation``, with contributions of
            any directions, each of norm at most 1. C times them has Frobenius norm at most the
            returned number, so ``z`` of standard deviation ``s`` makes all rounds together a
            Gaussian mechanism of noise multiplier ``s`` / sensitivity, under zero-out and
            add-remove. The contributions may depend on earlier releases.

        Args:
            min_separation: Smallest difference of two rounds of one user, at least 1: as when users
                are dealt to so many groups that take turns. At 1 everybody may be in every round.

        Raises:
            ConfigError: It is below 1, or nothing is known of such a matrix.

        References:
            Choquette-Choo et al. 2022, "Multi-Epoch Matrix Factorization Mechanisms for Private
            Machine Learning", section 2 (fixed order).
            Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal Private Linear
            Operators on Adaptive Streams", for releases that depend on earlier ones.
        """
        self.check(min_separation)
        return math.sqrt(self._squared_sensitivity(min_separation))

    def check(self, min_separation: int) -> None:
        """Refuse a separation whose sensitivity is not known.

        Raises:
            ConfigError: It is below 1, or nothing is known of such a matrix.
        """
        check_whole("min_separation", min_separation, ge=1)


def _keys(known: Any) -> list[str]:
    """The arguments of a factorisation."""
    return [one.name for one in fields(known)]


@dataclass(frozen=True)
class _Toeplitz(Factorisation):
    """C_st = c_(s-t), with c_0 = 1, so that the fresh part of every round's noise is z_t itself."""

    @property
    @abstractmethod
    def series(self) -> Vector:
        """(rounds,) c_0, c_1, ..."""

    @abstractmethod
    def _divide(self, numerator: Vector) -> Vector:
        """Return the first coefficients of the power series ``numerator`` / c, (rounds,)."""

    @cached_property
    def round_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise of each round."""
        return np.sqrt(np.cumsum(self._divide(impulse(self.rounds)) ** 2))

    def _squared_sensitivity(self, min_separation: int) -> float:
        # The worst set of rounds starts at once and comes back as soon as it may. Columns that do
        # not overlap only lose by moving to the right. Falling entries: the product of columns s
        # <= t, the sum of c_m c_(m+t-s) over m < T - t, falls with t and with t - s, and the i-th
        # round of any other set and its distance from the j-th are no smaller.
        series, encoded = self.series, np.zeros(self.rounds)
        for first in range(0, self.rounds, min_separation):
            encoded[first:] += series[: self.rounds - first]
        return float(encoded @ encoded)


@dataclass(frozen=True, kw_only=True)
class BandedToeplitz(_Toeplitz):
    """A lower triangular Toeplitz matrix with few bands.

    The noise of a round is a fresh innovation minus multiples of the noise of the rounds before, as
    many as there are bands but one. One band is independent noise.

    Formal guarantee:
        With no more bands than the rounds of a user are apart, the columns of these rounds do not
        overlap, and the sensitivity is exact for coefficients of any sign: the root of the sum of
        the squared column norms of rounds 0, b, 2 b, ... Also exact with more bands, where the
        coefficients are nonnegative and fall. Any other is refused.

    Args:
        rounds: Rounds T, at least 1.
        coefficients: c_0 = 1, c_1, ..., one per band, at most T.

    Raises:
        ConfigError: A value is out of range.

    References:
        Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", for bands and
        separation. McKenna 2024, "Scaling up the Banded Matrix Factorization Mechanism for
        Differentially Private ML", for `optimal`. Kalinin and Lampert 2024, "Banded Square
        Root Matrix Factorization for Differentially Private Model Training", for the worst set of
        rounds.
    """

    name: ClassVar[str] = "banded-toeplitz"
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        rounds = check_whole("rounds", self.rounds, ge=1)
        check_whole("the number of bands", len(self.coefficients), ge=1, le=rounds)
        values = tuple(check_number("coefficients", value) for value in self.coefficients)
        if values[0] != 1.0:
            raise ConfigError(f"coefficients must start with 1, got {values[0]!r}.")
        object.__setattr__(self, "coefficients", values)

    @classmethod
    def optimal(cls, *, rounds: int, bands: int, momentum: float = 0.0) -> BandedToeplitz:
        """Return the bands with the least noise at equal privacy.

        Minimises the root mean square noise of the running total times the sensitivity, for users
        whose rounds are at least as far apart as there are bands.

        Args:
            rounds: Rounds T, at least 1.
            bands: Between 1 and T: at most the separation of a user's rounds.
            momentum: Of the server's optimiser, in [0, 1).
        """
        bands = check_whole("bands", bands, ge=1, le=check_whole("rounds", rounds, ge=1))
        workload = momentum_workload(rounds, momentum)
        return cls(rounds=rounds, coefficients=optimal_bands(workload, bands))

    def check(self, min_separation: int) -> None:
        """Refuse a separation whose sensitivity is not known; see `Factorisation.check`."""
        super().check(min_separation)
        falling = all(a >= b >= 0.0 for a, b in itertools.pairwise(self.coefficients))
        if self.bands > min_separation and not falling:
            raise ConfigError(
                f"coefficients of {self.bands} bands must be nonnegative and fall where the rounds "
                f"of a user are {min_separation} apart."
            )

    @property
    def bands(self) -> int:
        """The number of bands."""
        return len(self.coefficients)

    @property
    def buffers(self) -> int:
        """One vector per band but the first."""
        return self.bands - 1

    @property
    def series(self) -> Vector:
        """(rounds,) the coefficients, and zeros."""
        return np.pad(np.asarray(self.coefficients), (0, self.rounds - self.bands))

    def _divide(self, numerator: Vector) -> Vector:
        return filtered(np.ones(1), np.asarray(self.coefficients), numerator)

    def recurrence(self) -> Recurrence:
        """Return the noise from the first round on."""
        return _BandedRecurrence(np.asarray(self.coefficients[1:]))


class _BandedRecurrence(Recurrence):
    """y_t = z_t - sum over j of c_j y_(t-j)."""

    def __init__(self, coefficients: Vector) -> None:
        self._coefficients = coefficients  # c_1, c_2, ...
        self._before = np.zeros((0, 0))  # ring of the noise of earlier rounds
        self._step = 0

    def next(self, draw: Draw) -> Vector:
        noise = draw()
        length = len(self._coefficients)
        if not length:
            return noise
        if not self._step:
            self._before = np.zeros((length, len(noise)))
        # Row r holds round t - j with r = t - j mod length; rounds before the first are zero.
        lags = (self._step - np.arange(length) - 1) % length + 1
        noise -= self._coefficients[lags - 1] @ self._before
        self._before[self._step % length] = noise
        self._step += 1
        return noise

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"before": self._before, "step": np.array(self._step)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._before = np.array(arrays["before"], dtype=np.float64)
        self._step = int(arrays["step"])


@dataclass(frozen=True, kw_only=True)
class BufferedLinearToeplitz(_Toeplitz):
    """A lower triangular Toeplitz matrix whose coefficients are a sum of few decaying powers.

    c_0 = 1 and c_i = sum over j of ``scales``_j ``decays``_j^(i-1). The noise of a round is a fresh
    innovation minus the scaled buffers; each buffer decays and takes the noise in. So the memory
    does not grow with the rounds or their separation, and two to three buffers come within a
    percent of the best Toeplitz matrix.

    Formal guarantee:
        The coefficients are positive and fall, so the worst set of rounds is 0, b, 2 b, ... and the
        sensitivity is exact.

    Args:
        rounds: Rounds T, at least 1.
        scales: One per buffer, positive, at most 1 in sum.
        decays: One per buffer, strictly between 0 and 1.

    Raises:
        ConfigError: A value is out of range.

    References:
        Dvijotham et al. 2024, "Efficient and Near-Optimal Noise Generation for Streaming
        Differential Privacy". McMahan, Xu and Zhang 2024, "A Hassle-free Algorithm for Private
        Learning in Practice: Don't Use Tree Aggregation, Use BLTs", here with the noise itself in
        the buffers, which needs no parameters of the inverse. McMahan and Pillutla 2025, "An
        Inversion Theorem for Buffered Linear Toeplitz (BLT) Matrices and Applications to Streaming
        Differential Privacy".
    """

    name: ClassVar[str] = "buffered-linear-toeplitz"
    scales: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, ge=1)
        if len(self.scales) != len(self.decays):
            raise ConfigError(
                f"scales and decays must be as many, got {len(self.scales)} and {len(self.decays)}."
            )
        check_whole("the number of buffers", len(self.scales), le=_MOST_BUFFERS)
        scales = tuple(check_number("scales", value, gt=0) for value in self.scales)
        decays = tuple(check_number("decays", value, gt=0, lt=1) for value in self.decays)
        if math.fsum(scales) > 1.0:
            raise ConfigError(f"scales must be at most 1 in sum, got {math.fsum(scales):g}.")
        object.__setattr__(self, "scales", scales)
        object.__setattr__(self, "decays", decays)

    @classmethod
    def optimal(
        cls,
        *,
        rounds: int,
        min_separation: int = 1,
        buffers: int | None = None,
        momentum: float = 0.0,
    ) -> BufferedLinearToeplitz:
        """Return the buffers with the least noise at equal privacy.

        Minimises the root mean square noise of the running total times the sensitivity.

        Args:
            rounds: Rounds T, at least 1.
            min_separation: Smallest difference of two rounds of one user, at least 1.
            buffers: Between 0 and 5. None for as many as each take 0.1 % off the noise, at most 4.
            momentum: Of the server's optimiser, in [0, 1).
        """
        workload = momentum_workload(rounds, momentum)
        check_whole("min_separation", min_separation, ge=1)
        if buffers is not None:
            buffers = check_whole("buffers", buffers, ge=0, le=5)
        scales, decays = optimal_buffers(workload, min_separation, buffers)
        return cls(rounds=rounds, scales=scales, decays=decays)

    @property
    def buffers(self) -> int:
        """The number of buffers."""
        return len(self.scales)

    @property
    def series(self) -> Vector:
        """(rounds,) the coefficients."""
        return buffer_series(self.rounds, np.asarray(self.scales), np.asarray(self.decays))

    def _divide(self, numerator: Vector) -> Vector:
        # 1 / c is a quotient of polynomials, too.
        above, below = inverse_of_buffers(np.asarray(self.scales), np.asarray(self.decays))
        return filtered(above, below, numerator)

    def recurrence(self) -> Recurrence:
        """Return the noise from the first round on."""
        return _BufferRecurrence(np.asarray(self.scales), np.asarray(self.decays))


class _BufferRecurrence(Recurrence):
    """y_t = z_t - scales . s_t with s_(t+1) = decays s_t + y_t."""

    def __init__(self, scales: Vector, decays: Vector) -> None:
        self._scales, self._decays = scales, decays
        self._sums = np.zeros((0, 0))

    def next(self, draw: Draw) -> Vector:
        noise = draw()
        if not len(self._scales):
            return noise
        if not self._sums.size:
            self._sums = np.zeros((len(self._scales), len(noise)))
        noise -= self._scales @ self._sums
        self._sums *= self._decays[:, None]
        self._sums += noise
        return noise

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"sums": self._sums}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._sums = np.array(arrays["sums"], dtype=np.float64)
