"""Who takes part how often: what the sensitivity of correlated noise depends on.

With independent noise every round costs on its own. With correlated noise the rounds are one
mechanism, and what a user costs is decided by the set of rounds that the user takes part in. So the
pattern is a contract: `Participation` states it, `CyclicSampling` keeps it, and the ledger refuses
a round that would break it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError

#: Patterns that are tried one by one; with more of them a bound takes the place of the maximum.
_MOST_PATTERNS = 20_000


@dataclass(frozen=True, kw_only=True)
class Participation:
    """A bound on the sets of rounds that one user may take part in.

    The sets are those of at most ``max_participations`` rounds, any two of them at least
    ``min_separation`` apart; with ``cyclic`` only those whose rounds are moreover all equal modulo
    ``min_separation``, as when users are dealt to groups that take turns. Three special cases:
    ``max_participations`` = 1 is one epoch, ``min_separation`` = 1 with ``max_participations`` =
    ``rounds`` is everybody in every round.

    Args:
        rounds: Rounds of the whole mechanism, at least 1.
        max_participations: Rounds of one user, at least 1. None for as many as the separation
            leaves room for.
        min_separation: Smallest difference of two rounds of one user, at least 1.
        cyclic: Whether the rounds of a user are also equal modulo ``min_separation``.

    Raises:
        ConfigError: A value is out of range, or ``cyclic`` meets fewer participations than the
            turns of a group.

    References:
        Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified approach to
        private training", section 2 (min-separation) and Choquette-Choo et al. 2022, "Multi-Epoch
        Matrix Factorization Mechanisms for Private Machine Learning", section 2 (fixed order).
    """

    rounds: int
    max_participations: int | None = None
    min_separation: int = 1
    cyclic: bool = False
    most: int = field(init=False, repr=False, compare=False)
    """Rounds that one user can take part in: the smaller of both bounds."""

    def __post_init__(self) -> None:
        rounds = check_whole("rounds", self.rounds, ge=1)
        separation = check_whole("min_separation", self.min_separation, ge=1)
        room = math.ceil(rounds / separation)
        most = room
        if self.max_participations is not None:
            most = check_whole("max_participations", self.max_participations, ge=1)
            if self.cyclic and most < room:
                raise ConfigError(
                    f"max_participations must be at least {room} where groups of users take turns "
                    f"over {rounds} rounds, {separation} apart, got {most}; use fewer rounds or "
                    "more groups."
                )
        object.__setattr__(self, "most", min(most, room))
        object.__setattr__(self, "max_participations", self.most)

    def patterns(self) -> Iterator[tuple[int, ...]]:
        """Yield sets of rounds, increasing and from 0, so that every allowed set lies in one.

        At most ``min_separation`` of them are cyclic; without ``cyclic`` their number explodes.
        """
        if self.cyclic:
            for first in range(min(self.min_separation, self.rounds)):
                yield tuple(range(first, self.rounds, self.min_separation))
            return
        stack: list[tuple[int, ...]] = [()]
        while stack:
            chosen = stack.pop()
            low = chosen[-1] + self.min_separation if chosen else 0
            if low >= self.rounds or len(chosen) == self.most:
                yield chosen
                continue
            # While the number of participations cannot run out, a gap that another round fits
            # into belongs to a set that is not yet as large as it can be.
            room = math.ceil((self.rounds - low) / self.min_separation)
            roomy = len(chosen) + room > self.most
            high = self.rounds if roomy else min(self.rounds, low + self.min_separation)
            stack.extend((*chosen, following) for following in range(low, high))

    def to_dict(self) -> dict[str, Any]:
        """The pattern as it stands in the ledger."""
        return {
            "rounds": self.rounds,
            "max_participations": self.max_participations,
            "min_separation": self.min_separation,
            "cyclic": self.cyclic,
        }

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> Participation:
        """Rebuild a pattern from `to_dict`.

        Raises:
            ConfigError: A value is out of range.
        """
        return Participation(
            rounds=description["rounds"],
            max_participations=description["max_participations"],
            min_separation=description["min_separation"],
            cyclic=bool(description["cyclic"]),
        )


def squared_sensitivity(
    gram: NDArray[np.float64], participation: Participation
) -> tuple[float, bool]:
    """Return the largest squared norm that one user can have behind an encoding matrix.

    With C the matrix and unit vectors x_t in the rounds of the user, that is the maximum over the
    allowed sets of sum over s, t of (C^T C)_st <x_s, x_t>, which for entries of one sign is
    reached by equal vectors.

    Args:
        gram: (T, T) C^T C. Negative entries count by their size, which is a bound.
        participation: Which sets of rounds are allowed.

    Returns:
        The maximum and True, where the sets are few enough to try or cyclic, and no entry is
        negative. Otherwise a bound and False: each row is given the set that is worst for it.

    Raises:
        ConfigError: ``gram`` has another size than the pattern has rounds.

    References:
        Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", equation 5 and
        algorithms 3 and 4.
    """
    if gram.shape != (participation.rounds, participation.rounds):
        raise ConfigError(
            f"gram must be {participation.rounds} by {participation.rounds}, got {gram.shape}."
        )
    sizes = np.abs(gram)
    if participation.cyclic or _num_sets(participation) <= _MOST_PATTERNS:
        largest = max(
            float(sizes[np.ix_(pattern, pattern)].sum()) for pattern in participation.patterns()
        )
        return largest, bool((gram >= 0.0).all())
    worst = largest_sums(sizes, participation)  # (T,)
    return float(largest_sums(worst[None], participation)[0]), False


def largest_sums(weights: NDArray[np.float64], participation: Participation) -> NDArray[np.float64]:
    """Return for each row of weights the largest sum over an allowed set of rounds.

    Args:
        weights: (n, T) at least 0.
        participation: Which sets are allowed.

    Returns:
        (n,).
    """
    rows, rounds = weights.shape
    if participation.cyclic:
        sums = [weights[:, list(pattern)].sum(axis=1) for pattern in participation.patterns()]
        return np.asarray(np.max(sums, axis=0))
    gap, most = participation.min_separation, participation.most
    # best[t % gap][j]: the largest sum of at most j rounds up to round t.
    best = np.zeros((gap, most + 1, rows))
    for t in range(rounds):
        earlier, latest = best[t % gap], best[(t - 1) % gap]  # up to rounds t - gap and t - 1
        following = latest.copy()
        np.maximum(following[1:], earlier[:-1] + weights[:, t], out=following[1:])
        best[t % gap] = following
    final: NDArray[np.float64] = best[(rounds - 1) % gap][most]
    return final


def _num_sets(participation: Participation) -> int:
    """Return how many sets of rounds are allowed."""
    gap = participation.min_separation
    return sum(
        math.comb(participation.rounds - (size - 1) * (gap - 1), size)
        for size in range(1, participation.most + 1)
    )
