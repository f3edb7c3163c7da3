"""Groups of users, dealt by a public hash of their ids: which of them is asked, and when."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.participation import Participation
from flower_privsyn.privacy.sampling import Sampling, set_population

_SALT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class _Turns(Sampling, ABC):
    """Users are dealt to groups, and the number of a round says which of them is asked."""

    salt: str
    population: int | None = None
    round_number: int | None = None
    rate: float = field(init=False, repr=False, compare=False)

    @property
    def takes_turns(self) -> bool:
        """True."""
        return True

    def of_round(self, number: int) -> Self:
        """Return the sampling of one round.

        Args:
            number: The round, counted over the whole run.

        Raises:
            ConfigError: It is none of the planned rounds.
        """
        return replace(self, round_number=number)

    @property
    @abstractmethod
    def all_groups(self) -> int:
        """How many groups the users are dealt to."""

    @abstractmethod
    def group_of_round(self, number: int) -> int:
        """The group that is asked in a round, between 0 and `all_groups` - 1."""

    def groups_of(self, user_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return (n,) int64, the group of every user, between 0 and `all_groups` - 1."""
        return _dealt(user_ids, groups=self.all_groups, salt=self.salt)

    def participants(
        self, user_ids: Sequence[str], *, key: bytes = b"", count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) True for the users of the group whose turn it is.

        Args:
            user_ids: (n,) the ids of the users on this node, unique in the federation.
            key: Unused: whose turn it is, is public.
            count: Unused.

        Raises:
            ConfigError: This is the plan and not the sampling of a round, see `of_round`.
        """
        del key, count
        if self.round_number is None:
            raise ConfigError("round_number must be given to say whose turn it is, got None.")
        asked: NDArray[np.bool_] = self.groups_of(user_ids) == self.group_of_round(
            self.round_number
        )
        return asked


@dataclass(frozen=True, kw_only=True)
class CyclicSampling(_Turns):
    """Users are dealt to groups by a public hash of their ids; the groups take turns.

    Round t, counted from 1, asks group (t - 1) mod ``groups``.

    Formal guarantee:
        The group is a function of the user's id and of ``salt`` alone, so it is the same in every
        round, on every node and after every restart. A user of group g takes part in round t only
        if t - 1 = g mod ``groups``. Any two such rounds differ by a positive multiple of
        ``groups``, and there are at most ceil(``rounds`` / ``groups``) of them. A user who is away
        takes part in fewer, which the sensitivity covers. The two conditions on which this rests: a
        user keeps one id for the whole run, and no round is asked twice. The ledger enforces the
        second (`PrivacyLedger`), also across restarts; the first is the duty of whoever loads the
        users.

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
    max_participations: int | None = None

    def __post_init__(self) -> None:
        pattern = Participation(
            rounds=self.rounds,
            max_participations=self.max_participations,
            min_separation=self.groups,
            cyclic=True,
        )
        object.__setattr__(self, "max_participations", pattern.max_participations)
        object.__setattr__(self, "rate", 1.0 / self.groups)
        _check_salt(self.salt)
        set_population(self, required=False)
        if self.round_number is not None:
            number = check_whole("round_number", self.round_number, ge=1, le=self.rounds)
            object.__setattr__(self, "round_number", number)

    @property
    def all_groups(self) -> int:
        """`groups`."""
        return self.groups

    def group_of_round(self, number: int) -> int:
        """The groups one after another, and from the first again."""
        return (number - 1) % self.groups

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


@dataclass(frozen=True, kw_only=True)
class GroupSampling(Sampling):
    """One of disjoint groups takes part in every round; the others are for other phases.

    Formal guarantee:
        The group is a function of the user's id and of ``salt`` alone, as for
        `CyclicSampling`. Somebody in group g takes part in no round that asks another group
        of the same deal (equal ``salt`` and ``groups``), so rounds of different groups cost the
        most that one of them does, and not their sum; the accountants take that maximum. It rests
        on a user keeping one id for the whole run. A group that was missed is not asked in
        another's place.

    Args:
        groups: Number of groups, at least 1.
        turn: The group that is asked, between 0 and ``groups`` - 1.
        salt: 32 hexadecimal digits, public. Other salts deal users to other groups.
        population: Number of users in the federation, at least 1; None when it is not known.

    Raises:
        ConfigError: A value is out of range.
    """

    method: ClassVar[str] = "group"
    groups: int
    turn: int
    salt: str
    population: int | None = None
    rate: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        groups = check_whole("groups", self.groups, ge=1)
        check_whole("turn", self.turn, ge=0, le=groups - 1)
        object.__setattr__(self, "rate", 1.0 / groups)
        _check_salt(self.salt)
        set_population(self, required=False)

    @property
    def group(self) -> tuple[str, int, int]:
        """The deal's salt, its groups, and the one that is asked."""
        return self.salt, self.groups, self.turn

    def participants(
        self, user_ids: Sequence[str], *, key: bytes = b"", count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) True for the users of the group.

        Args:
            user_ids: (n,) the ids of the users on this node, unique in the federation.
            key: Unused: who is in which group is public.
            count: Unused.
        """
        del key, count
        asked: NDArray[np.bool_] = _dealt(user_ids, groups=self.groups, salt=self.salt) == self.turn
        return asked

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "group", "groups": ..., "turn": ..., ...}``."""
        return {
            "method": self.method,
            "groups": self.groups,
            "turn": self.turn,
            "salt": self.salt,
            "population": self.population,
        }


@dataclass(frozen=True, kw_only=True)
class DisjointCyclicSampling(_Turns):
    """Users are dealt to disjoint shares; in a phase, the groups of one share take turns.

    All groups of all shares are of one deal, so that cohorts of every share are as large. Round t
    asks the group (t - ``first_round``) mod ``groups[share]`` of the phase's share.

    Formal guarantee:
        The group is a function of the user's id, of ``salt`` and of the number of all groups alone.
        A user of another share takes part in none of these rounds; one of this share in rounds that
        differ by a positive multiple of ``groups[share]``, at most ceil(``rounds`` /
        ``groups[share]``) of them. Phases of different shares of one deal (equal ``salt`` and
        ``groups``) therefore have no user in common, and cost the most that one of them does. It
        rests on a user keeping one id for the whole run and on no round being asked twice, as for
        `CyclicSampling`.

    Args:
        groups: Groups of every share, each at least 1.
        share: The share that is asked, between 0 and the number of shares less 1.
        first_round: The number of the phase's first round, at least 1.
        rounds: Rounds of the phase, at least 1.
        salt: 32 hexadecimal digits, public. Other salts deal users to other groups.
        population: Number of users in the federation, at least 1; None when it is not known.
        round_number: The round this sampling is asked for; None for the plan as a whole.

    Raises:
        ConfigError: A value is out of range.

    References:
        Wang et al. 2023, "Can Public Large Language Models Help Private Cross-device Federated
        Learning?", section 4: both halves of the training draw from one pool without repetition.
    """

    method: ClassVar[str] = "disjoint-cyclic"
    groups: tuple[int, ...]
    share: int
    first_round: int
    rounds: int

    def __post_init__(self) -> None:
        if not isinstance(self.groups, tuple | list) or not self.groups:
            raise ConfigError(f"groups must be numbers of groups, got {self.groups!r}.")
        groups = tuple(check_whole("groups", number, ge=1) for number in self.groups)
        object.__setattr__(self, "groups", groups)
        check_whole("share", self.share, ge=0, le=len(groups) - 1)
        first = check_whole("first_round", self.first_round, ge=1)
        rounds = check_whole("rounds", self.rounds, ge=1)
        object.__setattr__(self, "rate", 1.0 / sum(groups))
        _check_salt(self.salt)
        set_population(self, required=False)
        if self.round_number is not None:
            check_whole("round_number", self.round_number, ge=first, le=first + rounds - 1)

    @property
    def group(self) -> tuple[str, int, int]:
        """The deal, its groups, and the share that is asked.

        The numbers of groups are part of the deal: of shares that are cut otherwise nothing is
        known to be disjoint.
        """
        cut = "+".join(str(number) for number in self.groups)
        return f"{self.salt}/{cut}", sum(self.groups), self.share

    @property
    def all_groups(self) -> int:
        """Those of all shares together."""
        return sum(self.groups)

    def group_of_round(self, number: int) -> int:
        """The groups of the share one after another, and from its first again."""
        turn = (number - self.first_round) % self.groups[self.share]
        return sum(self.groups[: self.share]) + turn

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "disjoint-cyclic", "groups": [...], "share": ..., ...}``."""
        return {
            "method": self.method,
            "groups": list(self.groups),
            "share": self.share,
            "first_round": self.first_round,
            "rounds": self.rounds,
            "salt": self.salt,
            "population": self.population,
            "round_number": self.round_number,
        }


def participation_of(sampling: Sampling, *, rounds: int) -> Participation:
    """Return what a sampling says of the rounds of one user.

    Only `CyclicSampling` and `DisjointCyclicSampling` keep rounds apart. Under every other sampling
    a user may be drawn in every round, and the accountant of correlated noise has no use for the
    chance that they are not.

    Args:
        sampling: How the cohorts are drawn.
        rounds: Rounds of the whole mechanism, at least 1.

    Raises:
        ConfigError: The sampling is cyclic and planned for fewer rounds, or for other ones.
    """
    if isinstance(sampling, CyclicSampling):
        if rounds > sampling.rounds:
            raise ConfigError(
                f"rounds must be at most {sampling.rounds}, for which the cyclic sampling is "
                f"planned, got {rounds}."
            )
        return Participation(rounds=rounds, min_separation=sampling.groups, cyclic=True)
    if isinstance(sampling, DisjointCyclicSampling):
        if rounds != sampling.rounds:
            raise ConfigError(
                f"rounds must be {sampling.rounds}, for which the turns of the share are planned, "
                f"got {rounds}."
            )
        separation = sampling.groups[sampling.share]
        return Participation(rounds=rounds, min_separation=separation, cyclic=True)
    return Participation(rounds=rounds)


def _check_salt(salt: object) -> None:
    if not isinstance(salt, str) or not _SALT.fullmatch(salt):
        raise ConfigError(f"salt must be 32 hexadecimal digits, got {salt!r}.")


def _dealt(user_ids: Sequence[str], *, groups: int, salt: str) -> NDArray[np.int64]:
    """Return (n,) int64, the group of every user: a public hash of its id."""
    empty = hashlib.blake2b(digest_size=8, salt=bytes.fromhex(salt), person=b"privsyn-turns")
    dealt = np.empty(len(user_ids), dtype=np.int64)
    for index, user_id in enumerate(user_ids):
        mark = empty.copy()
        mark.update(user_id.encode())
        dealt[index] = int.from_bytes(mark.digest(), "little") % groups
    return dealt
