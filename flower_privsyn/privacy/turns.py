"""Groups of users, dealt by a public hash of their ids, that take turns."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.participation import Participation
from flower_privsyn.privacy.sampling import Sampling, set_population

_SALT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, kw_only=True)
class CyclicSampling(Sampling):
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
        salt: 32 hexadecimal digits, public. Other salts deal users to other groups.
        population: Number of users in the federation, at least 1; None when it is not known.
        round_number: The round this sampling is asked for; None for the plan as a whole.

    Raises:
        ConfigError: A value is out of range.
    """

    method: ClassVar[str] = "cyclic"
    groups: int
    rounds: int
    salt: str
    population: int | None = None
    round_number: int | None = None
    rate: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, ge=1)
        object.__setattr__(self, "rate", 1.0 / check_whole("groups", self.groups, ge=1))
        if not isinstance(self.salt, str) or not _SALT.fullmatch(self.salt):
            raise ConfigError(f"salt must be 32 hexadecimal digits, got {self.salt!r}.")
        set_population(self, required=False)
        if self.round_number is not None:
            number = check_whole("round_number", self.round_number, ge=1, le=self.rounds)
            object.__setattr__(self, "round_number", number)

    @property
    def takes_turns(self) -> bool:
        """True."""
        return True

    def of_round(self, number: int) -> CyclicSampling:
        """Return the sampling of one round.

        Args:
            number: The round, counted over the whole run.

        Raises:
            ConfigError: It is none of the planned rounds.
        """
        return replace(self, round_number=number)

    def groups_of(self, user_ids: Sequence[str]) -> NDArray[np.int64]:
        """Return (n,) int64, the group of every user, between 0 and ``groups`` - 1."""
        empty = hashlib.blake2b(
            digest_size=8, salt=bytes.fromhex(self.salt), person=b"privsyn-turns"
        )
        dealt = np.empty(len(user_ids), dtype=np.int64)
        for index, user_id in enumerate(user_ids):
            mark = empty.copy()
            mark.update(user_id.encode())
            dealt[index] = int.from_bytes(mark.digest(), "little") % self.groups
        return dealt

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
        asked: NDArray[np.bool_] = self.groups_of(user_ids) == (self.round_number - 1) % self.groups
        return asked

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "cyclic", "groups": ..., "rounds": ..., ...}``."""
        return {
            "method": self.method,
            "groups": self.groups,
            "rounds": self.rounds,
            "salt": self.salt,
            "population": self.population,
            "round_number": self.round_number,
        }


def participation_of(sampling: Sampling, *, rounds: int) -> Participation:
    """Return what a sampling says of the rounds of one user.

    Only `CyclicSampling` keeps rounds apart. Under every other sampling a user may be drawn in
    every round, and the accountant of correlated noise has no use for the chance that they are not.

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
        return Participation(rounds=rounds, min_separation=sampling.groups)
    return Participation(rounds=rounds)
