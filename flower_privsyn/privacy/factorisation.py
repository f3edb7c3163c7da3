"""Matrices that correlate the noise of different rounds, so that sums over rounds carry less of it.

A model trained on noisy round sums is moved by their running total. Independent noise of every
round piles up in it; noise that later rounds partly take back does not. Such noise is described by
two matrices: C encodes the rounds x into what the privacy rests on, C x + z with independent
normal z, and D reads the rounds off it again, D C = I. What round t releases is

    x_t + (D z)_t,

so all rounds together are post-processing of one Gaussian mechanism with the sensitivity of C.

Here are the C that are lower triangular and Toeplitz, banded or with buffers, and binary trees.
Everything is in units of the innovations z. Their standard deviation, and who may see what, is the
business of `flower_privsyn.privacy.correlated_noise`.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import Described, check_number, check_whole
from flower_privsyn.errors import ConfigError

Vector: TypeAlias = NDArray[np.float64]
#: What the noise of later rounds takes up, by name. Secret: with the releases it gives sums away.
Memory: TypeAlias = dict[str, NDArray[Any]]

#: Each takes a vector of the rounds to know the sensitivity, and one of the release to make noise.
_MOST_BUFFERS = 16
#: Most of those that `BufferedLinearToeplitz.optimal` finds.
_WORTHWHILE_BUFFERS = 4
#: A further one must gain this much, relative.
_WORTH_A_BUFFER = 1e-3
_LARGEST_DECAY = 1.0 - 1e-9
#: Of a decay: below, a buffer is as good as gone in a round.
_LEAST_LOGIT = -9.0


@dataclass(frozen=True)
class Factorisation(Described, ABC):
    """How the noise of ``rounds`` rounds is correlated.

    Subclasses: `BandedToeplitz`, `BufferedLinearToeplitz`, `TreeAggregation`.
    """

    told_by: ClassVar[str] = "name"
    name: ClassVar[str]
    rounds: int

    @cached_property
    @abstractmethod
    def round_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise of each round."""

    @abstractmethod
    def _squared_sensitivity(self, min_separation: int) -> float: ...

    @abstractmethod
    def next_noise(self, innovation: Vector, memory: Memory) -> Vector:
        """Return the noise of the next round, in units of the innovations.

        Args:
            innovation: (m,) standard normal variates, which may be overwritten.
            memory: What the rounds before have left, empty before the first; brought up to date.

        Returns:
            (m,) float64, an array of its own.
        """

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
        return np.sqrt(np.cumsum(self._divide(np.eye(1, self.rounds)[0]) ** 2))

    def _squared_sensitivity(self, min_separation: int) -> float:
        # The worst set of rounds starts at once and comes back as soon as it may. Columns that do
        # not overlap only lose by moving to the right. Falling entries: the product of columns s
        # <= t, the sum of c_m c_(m+t-s) over m < T - t, falls with t and with t - s, and the i-th
        # round of any other set and its distance from the j-th are no smaller.
        return _length_squared(self.series, min_separation)


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
        return cls(rounds=rounds, coefficients=_optimal_bands(workload, bands))

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
    def series(self) -> Vector:
        """(rounds,) the coefficients, and zeros."""
        return np.pad(np.asarray(self.coefficients), (0, self.rounds - self.bands))

    def _divide(self, numerator: Vector) -> Vector:
        return _filtered(np.ones(1), np.asarray(self.coefficients), numerator)

    def next_noise(self, innovation: Vector, memory: Memory) -> Vector:
        """Return y_t = z_t - sum over j of c_j y_(t-j); see `Factorisation.next_noise`."""
        length = self.bands - 1
        if not length:
            return innovation
        if not memory:
            # A ring of the noise of earlier rounds, and how many there were.
            memory |= {"before": np.zeros((length, len(innovation))), "step": np.array(0)}
        before, step = memory["before"], int(memory["step"])
        # Row r holds round t - j with r = t - j mod length; rounds before the first are zero.
        lags = (step - np.arange(length) - 1) % length + 1
        innovation -= np.asarray(self.coefficients)[lags] @ before
        before[step % length] = innovation
        memory["step"] += 1
        return innovation


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
        momentum: float = 0.0,
    ) -> BufferedLinearToeplitz:
        """Return the buffers with the least noise at equal privacy.

        Minimises the root mean square noise of the running total times the sensitivity, with as
        many buffers as each take 0.1 % off it, at most 4.

        Args:
            rounds: Rounds T, at least 1.
            min_separation: Smallest difference of two rounds of one user, at least 1.
            momentum: Of the server's optimiser, in [0, 1).
        """
        scales, decays = _optimal_buffers(rounds, momentum, min_separation)
        return cls(rounds=rounds, scales=scales, decays=decays)

    @property
    def series(self) -> Vector:
        """(rounds,) the coefficients."""
        return _buffer_series(self.rounds, np.asarray(self.scales), np.asarray(self.decays))

    def _divide(self, numerator: Vector) -> Vector:
        # 1 / c is a quotient of polynomials, too.
        above, below = _inverse_of_buffers(np.asarray(self.scales), np.asarray(self.decays))
        return _filtered(above, below, numerator)

    def next_noise(self, innovation: Vector, memory: Memory) -> Vector:
        """Return y_t = z_t - scales . s_t, with s_(t+1) = decays s_t + y_t.

        See `Factorisation.next_noise`.
        """
        sums = memory.setdefault("sums", np.zeros((len(self.scales), len(innovation))))
        innovation -= np.asarray(self.scales) @ sums
        sums *= np.asarray(self.decays)[:, None]
        sums += innovation
        return innovation


# Power series behind Toeplitz matrices, and the search for the best ones --------------------------


def _filtered(above: Vector, below: Vector, numerator: Vector) -> Vector:
    """Return the first coefficients of the power series ``numerator`` ``above`` / ``below``.

    Args:
        above: Coefficients of a polynomial.
        below: Coefficients of a polynomial that starts with 1.
        numerator: (T,) the coefficients of a power series.

    Returns:
        (T,).
    """
    from scipy.signal import lfilter

    return np.asarray(lfilter(above, below, numerator), dtype=np.float64)


def momentum_workload(rounds: int, momentum: float) -> Vector:
    """Return the weights of a round in the model of that round, of the next one, and so on.

    A server that keeps v = momentum v + x and adds v to the model has 1 + momentum + ... +
    momentum^j of a round's sum in the model j rounds later.

    Args:
        rounds: At least 1.
        momentum: In [0, 1); 0 gives the plain running total.

    Returns:
        (rounds,).

    Raises:
        ConfigError: A value is out of range.
    """
    rounds = check_whole("rounds", rounds, ge=1)
    momentum = check_number("momentum", momentum, ge=0, lt=1)
    return np.cumsum(momentum ** np.arange(rounds))


def _square_root_series(length: int) -> Vector:
    """Return the first coefficients of 1 / sqrt(1 - x)."""
    steps = np.arange(1, length)
    return np.concatenate(([1.0], np.cumprod((2.0 * steps - 1.0) / (2.0 * steps))))


def _mean_square(total: Vector) -> float:
    """Return the mean over rounds of the variance of a total.

    Args:
        total: (T,) the weights in a round's total of the innovation of that round, of the one
            before, and so on.
    """
    rounds = len(total)
    return float(np.arange(rounds, 0, -1) @ total**2) / rounds


def _buffer_series(rounds: int, scales: Vector, decays: Vector) -> Vector:
    """Return 1 and the sums over the buffers of scale x decay^i, (rounds,)."""
    powers = decays[:, None] ** np.arange(rounds - 1)  # (buffers, rounds - 1)
    return np.concatenate(([1.0], scales @ powers))


def _inverse_of_buffers(scales: Vector, decays: Vector) -> tuple[Vector, Vector]:
    """Return the polynomials (above, below) of 1 / c, for c the series of the buffers."""
    above = np.atleast_1d(np.poly(decays))  # the polynomial with these roots
    below = above.copy()
    for index, scale in enumerate(scales):
        below[1:] += scale * np.poly(np.delete(decays, index))
    return above, below


def _optimal_bands(workload: Vector, bands: int) -> tuple[float, ...]:
    """Return 1, c_1, ... with the least mean square noise times squared sensitivity.

    Args:
        workload: (T,) the weights of the running total.
        bands: Between 1 and T. Columns that many rounds apart do not overlap, so the squared
            sensitivity is in proportion to the squared norm of a column.
    """
    if bands == 1:
        return (1.0,)

    def loss(free: Vector) -> float:
        coefficients = np.concatenate(([1.0], free))
        total = _filtered(np.ones(1), coefficients, workload)
        return math.log(_mean_square(total) * float(coefficients @ coefficients))

    found, _ = _minimise(loss, _square_root_series(bands)[1:])
    return (1.0, *found.tolist())


@cache  # every start of a run wants them, and the plan of every cell of a comparison
def _optimal_buffers(
    rounds: int, momentum: float, min_separation: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return scales and decays with the least mean square noise times squared sensitivity.

    Args:
        rounds: T.
        momentum: of the server's optimiser.
        min_separation: Smallest difference of two rounds of one user.
    """
    workload = momentum_workload(rounds, momentum)
    value, scales, decays = _best_of(workload, min_separation, 0)
    for number in range(1, _WORTHWHILE_BUFFERS + 1):
        further = _best_of(workload, min_separation, number)
        # The loss is the logarithm of a variance: twice that of a standard deviation.
        if further[0] > value - 2.0 * _WORTH_A_BUFFER:
            break
        value, scales, decays = further
    return scales, decays


def _best_of(
    workload: Vector, min_separation: int, buffers: int
) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Return (loss, scales, decays) of the best local minimum from several starts."""

    def loss(free: Vector) -> float:
        return _buffer_loss(*_buffers_from(free), workload, min_separation)

    if not buffers:
        return _buffer_loss(np.zeros(0), np.zeros(0), workload, min_separation), (), ()
    ends: list[tuple[Vector, float]] = []
    rounds = len(workload)
    for longest in (rounds, max(2.0, math.sqrt(rounds)), 4.0):
        # Decays over spans between two rounds and the longest, evenly in logarithms.
        spans = np.geomspace(longest, 2.0, buffers) if buffers > 1 else np.array([longest])
        decays = 1.0 - 1.0 / np.maximum(spans, 1.5)
        start = np.concatenate((np.log(decays / (1.0 - decays)), np.zeros(buffers), [0.0]))
        ends.append(_minimise(loss, start))
    # Where a search ends depends on the last bits of a processor, which the loss does not feel.
    ended, _ = min(ends, key=lambda end: end[1])
    rounded: Vector = np.maximum(ended, _LEAST_LOGIT).round(3)
    scales, decays = _buffers_from(rounded)
    order = np.argsort(-decays)
    return loss(rounded), tuple(scales[order].tolist()), tuple(decays[order].tolist())


def _buffers_from(free: Vector) -> tuple[Vector, Vector]:
    """Return scales and decays from unbounded numbers.

    Args:
        free: (2 d + 1,) logits of the d decays, d logits of weights, the logit of the sum.
    """
    count = len(free) // 2
    decays = _LARGEST_DECAY / (1.0 + np.exp(-free[:count]))
    weights = np.exp(free[count : 2 * count] - free[count : 2 * count].max())
    whole = 1.0 / (1.0 + math.exp(-float(free[-1])))
    # A hair below, so that the scales never exceed 1 in sum by their rounding.
    return (1.0 - 1e-12) * whole * weights / weights.sum(), decays


def _buffer_loss(scales: Vector, decays: Vector, workload: Vector, min_separation: int) -> float:
    """Return log(mean square noise x squared sensitivity)."""
    total = _filtered(*_inverse_of_buffers(scales, decays), workload)
    series = _buffer_series(len(workload), scales, decays)
    return math.log(_mean_square(total) * _length_squared(series, min_separation))


def _length_squared(series: Vector, separation: int) -> float:
    """Return the squared norm of the sum of a Toeplitz matrix's columns 0, b, 2 b, ..."""
    encoded = np.zeros(len(series))
    for first in range(0, len(series), separation):
        encoded[first:] += series[: len(series) - first]
    return float(encoded @ encoded)


def _minimise(loss: Callable[[Vector], float], start: Vector) -> tuple[Vector, float]:
    """Return the place and the value of a local minimum."""
    from scipy.optimize import minimize

    with np.errstate(over="ignore"):
        found = minimize(
            loss,
            start,
            method="L-BFGS-B",
            bounds=[(-30.0, 30.0)] * len(start),
            options={"maxiter": 1000, "maxfun": 10**6, "ftol": 1e-13, "gtol": 1e-9},
        )
    return np.asarray(found.x, dtype=np.float64), float(found.fun)


@dataclass(frozen=True, kw_only=True)
class TreeAggregation(Factorisation):
    """Binary trees over the rounds: every complete node is the sum of its rounds plus noise.

    The running total after a round is read off the fewest nodes that make it up, one per binary one
    in the number of rounds. After ``restart_every`` rounds a new tree begins, on top of the total
    of the tree before.

    Formal guarantee:
        Every node that is complete when its tree ends counts, whether the total uses it or not, as
        in the paper. The sensitivity is exact. One participation in a tree of n rounds is in at
        most floor(log2 n) + 1 nodes.

    With one round per tree, as when everybody takes part in every round and each pass over the
    users is an epoch, this is independent noise: DP-FTRL is then DP-FedAvg.

    Args:
        rounds: Rounds T, at least 1.
        restart_every: Rounds per tree, at least 1; None for a single tree.

    Raises:
        ConfigError: A value is out of range.

    References:
        Kairouz et al. 2021, "Practical and Private (Deep) Learning Without Sampling or Shuffling",
        algorithm 1 (DP-FTRL), and its appendices on tree aggregation and restarts.
    """

    name: ClassVar[str] = "tree-aggregation"
    restart_every: int | None = None

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, ge=1)
        if self.restart_every is not None:
            check_whole("restart_every", self.restart_every, ge=1)

    @property
    def trees(self) -> tuple[int, ...]:
        """The number of rounds of each tree."""
        length = min(self.restart_every or self.rounds, self.rounds)
        whole, rest = divmod(self.rounds, length)
        return (length,) * whole + ((rest,) if rest else ())

    @cached_property
    def round_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise of each round."""
        # The node that a round completes, and those below it that leave the total.
        nodes = [1 + next(_ones(number)) for size in self.trees for number in range(1, size + 1)]
        return np.sqrt(np.array(nodes, dtype=np.float64))

    def _squared_sensitivity(self, min_separation: int) -> float:
        # Every round is in one pattern, so that all patterns together are looked at round by round.
        pattern = np.arange(self.rounds) % min_separation
        first, leaves = (
            np.repeat(values, self.trees)
            for values in (np.cumsum((0, *self.trees[:-1])), self.trees)
        )
        squared = np.zeros(pattern.max() + 1)
        for level in range(int(leaves.max()).bit_length()):
            node = (np.arange(self.rounds) - first) >> level
            inside = node < leaves >> level
            # By its pattern and the round that the node begins with.
            keys = pattern * self.rounds + (node << level) + first
            keys, visits = np.unique(keys[inside], return_counts=True)
            squared += np.bincount(keys // self.rounds, visits**2, len(squared))
        return float(squared.max())

    def next_noise(self, innovation: Vector, memory: Memory) -> Vector:
        """Return what the round's node adds to the total; see `Factorisation.next_noise`."""
        if not memory:
            # Of the nodes that make up the current total, one per level.
            levels = max(self.trees).bit_length()
            memory |= {"nodes": np.zeros((levels, len(innovation))), "round": np.array(0)}
        number, nodes = int(memory["round"]) % max(self.trees) + 1, memory["nodes"]
        # The largest node that the round completes; the smaller ones are in no total.
        level = next(_ones(number))
        # The total now holds this node in place of the lower ones.
        change: Vector = innovation - nodes[:level].sum(axis=0)
        nodes[level] = innovation
        memory["round"] += 1
        return change


def _ones(number: int) -> Iterator[int]:
    """Yield the places of the binary ones of a number, lowest first."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number -= lowest
