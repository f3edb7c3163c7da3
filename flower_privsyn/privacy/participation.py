"""Who takes part how often: what the sensitivity of correlated noise depends on.

With independent noise every round costs on its own. With correlated noise the rounds are one
mechanism, and what a user costs is decided by the set of rounds that the user takes part in. So the
pattern is a contract: :class:`Participation` states it, :class:`CyclicSampling` keeps it, and the
ledger refuses a round that would break it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.privacy import _checks
from flower_privsyn.privacy.sampling import Sampling

_SALT = re.compile(r"[0-9a-f]{32}")
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
        rounds = _checks.whole("rounds", self.rounds, low=1)
        separation = _checks.whole("min_separation", self.min_separation, low=1)
        room = math.ceil(rounds / separation)
        most = room
        if self.max_participations is not None:
            most = _checks.whole("max_participations", self.max_participations, low=1)
            if self.cyclic and most < room:
                raise ConfigError(
                    f"max_participations must be at least {room} where groups of users take turns "
                    f"over {rounds} rounds, {separation} apart, got {most}; use fewer rounds or "
                    "more groups."
                )
        object.__setattr__(self, "most", min(most, room))
        object.__setattr__(self, "max_participations", self.most)

    def check(self, rounds: Collection[int]) -> None:
        """Refuse a set of rounds of one user.

        Args:
            rounds: Whole numbers, counted from 0 or from 1.

        Raises:
            FederationError: They are too many, too close, or not a turn of one group.
        """
        ordered = sorted(rounds)
        if len(ordered) > self.most:
            raise FederationError(
                f"A user takes part {len(ordered)} times where {self.most} are accounted for."
            )
        for before, after in itertools.pairwise(ordered):
            if after - before < self.min_separation:
                raise FederationError(
                    f"A user takes part in rounds {before} and {after}, which are less than the "
                    f"accounted {self.min_separation} apart."
                )
            if self.cyclic and (after - before) % self.min_separation:
                raise FederationError(
                    f"A user takes part in rounds {before} and {after}, which are not turns of one "
                    f"of {self.min_separation} groups."
                )

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
        """Rebuild a pattern from :meth:`to_dict`.

        Raises:
            ConfigError: A value is out of range.
        """
        return Participation(
            rounds=description["rounds"],
            max_participations=description["max_participations"],
            min_separation=description["min_separation"],
            cyclic=bool(description["cyclic"]),
        )


def participation_of(sampling: Sampling, *, rounds: int) -> Participation:
    """Return what a sampling says of the rounds of one user.

    Only :class:`CyclicSampling` keeps rounds apart. Under every other sampling a user may be drawn
    in every round, and the accountant of correlated noise has no use for the chance that they are
    not.

    Args:
        sampling: How the cohorts are drawn.
        rounds: Rounds of the whole mechanism, at least 1.

    Raises:
        ConfigError: The sampling is cyclic and planned for fewer rounds.
    """
    if isinstance(sampling, CyclicSampling):
        if rounds > sampling.rounds:
            raise ConfigError(
                f"rounds must be at most {sampling.rounds}, for which the cyclic sampling is "
                f"planned, got {rounds}."
            )
        return Participation(rounds=rounds, min_separation=sampling.groups, cyclic=True)
    return Participation(rounds=rounds)


@dataclass(frozen=True, kw_only=True)
class CyclicSampling(Sampling):
    """Users are dealt to groups by a public hash of their ids; the groups take turns.

    Round t, counted from 1, asks group (t - 1) mod ``groups``.

    *Formal guarantee.* The group is a function of the user's id and of ``salt`` alone, so it is
    the same in every round, on every node and after every restart. A user of group g takes part
    in round t only if t - 1 = g mod ``groups``. Any two such rounds differ by a positive multiple
    of ``groups``, and there are at most ceil(``rounds`` / ``groups``) of them. A user who is away
    takes part in fewer, which the sensitivity covers. The two conditions on which this rests: a
    user keeps one id for the whole run, and no round is asked twice. The ledger enforces the
    second (:class:`~flower_privsyn.privacy.ledger.PrivacyLedger`), also across restarts; the
    first is the duty of whoever loads the users.

    Groups are of users, not of nodes: a node with users of several groups answers in several
    rounds, with other users each time. Who is in which group is no secret, and nothing is
    amplified. The sizes of the groups differ by chance, as the sizes of Poisson cohorts do.

    Args:
        groups: Number of groups b, at least 1: the smallest separation of two rounds of a user.
        rounds: Rounds T, at least 1.
        max_participations: Rounds of one user that are allowed, at least 1; None for what
            ``rounds`` and ``groups`` leave room for.
        salt: 32 hexadecimal digits, public. Other salts deal users to other groups.
        population: Number of users in the federation, at least 1; None when it is not known.
        round_number: The round this sampling is asked for; None for the plan as a whole.

    Raises:
        ConfigError: A value is out of range, or the rounds would make users take part more than
            ``max_participations`` times.
    """

    method: ClassVar[str] = "cyclic"
    groups: int
    rounds: int
    salt: str
    max_participations: int | None = None
    population: int | None = None
    round_number: int | None = None
    rate: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = Participation(
            rounds=self.rounds,
            max_participations=self.max_participations,
            min_separation=self.groups,
            cyclic=True,
        )
        object.__setattr__(self, "max_participations", pattern.max_participations)
        object.__setattr__(self, "rate", 1.0 / self.groups)
        if not isinstance(self.salt, str) or not _SALT.fullmatch(self.salt):
            raise ConfigError(f"salt must be 32 hexadecimal digits, got {self.salt!r}.")
        if self.population is not None:
            object.__setattr__(
                self, "population", _checks.whole("population", self.population, low=1)
            )
        if self.round_number is not None:
            number = _checks.whole("round_number", self.round_number, low=1, high=self.rounds)
            object.__setattr__(self, "round_number", number)

    def of_round(self, number: int) -> CyclicSampling:
        """Return the sampling of one round.

        Args:
            number: The round, between 1 and ``rounds``.

        Raises:
            ConfigError: It is none of the planned rounds.
        """
        return replace(self, round_number=number)

    def groups_of(self, user_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return (n,) int64, the group of every user, between 0 and ``groups`` - 1."""
        empty = hashlib.blake2b(
            digest_size=8, salt=bytes.fromhex(self.salt), person=b"privsyn-turns"
        )
        groups = np.empty(len(user_ids), dtype=np.int64)
        for index, user_id in enumerate(user_ids):
            mark = empty.copy()
            mark.update(user_id.encode())
            groups[index] = int.from_bytes(mark.digest(), "little") % self.groups
        return groups

    def participants(
        self, user_ids: Sequence[str], *, key: bytes = b"", count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) True for the users of the group whose turn it is.

        Args:
            user_ids: (n,) the ids of the users on this node, unique in the federation.
            key: Unused: whose turn it is, is public.
            count: Unused.

        Raises:
            ConfigError: This is the plan and not the sampling of a round, see :meth:`of_round`.
        """
        del key, count
        if self.round_number is None:
            raise ConfigError("round_number must be given to say whose turn it is, got None.")
        turn: NDArray[np.bool_] = self.groups_of(user_ids) == (self.round_number - 1) % self.groups
        return turn

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "cyclic", "groups": ..., "rounds": ..., ...}``."""
        return {
            "method": self.method,
            "groups": self.groups,
            "rounds": self.rounds,
            "max_participations": self.max_participations,
            "salt": self.salt,
            "population": self.population,
            "round_number": self.round_number,
        }


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
