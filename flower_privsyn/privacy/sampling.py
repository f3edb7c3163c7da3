"""Which users take part in a round; the same object tells the accountant."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import Described, check_number, check_whole
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.privacy.randomness import RandomSource

_MIN_KEY_BYTES = 16
_SALT = re.compile(r"[0-9a-f]{32}")


class Sampling(Described, ABC):
    """How the cohort of a round is drawn.

    One object decides who takes part (`participants`, `allocate`) and is what the
    accountants read, so the two cannot disagree. Subclasses: `FullParticipation`,
    `PoissonSampling`, `FixedSizeSampling`, and `CyclicSampling` for correlated noise.
    """

    told_by: ClassVar[str] = "method"
    method: ClassVar[str]
    rate: float
    """The expected fraction of the population in a cohort, in (0, 1]."""
    population: int | None
    """The number of users in the federation, where it is known."""
    round_number: int | None = None
    """The round that this is the sampling of, where users take turns; None for the plan."""

    def __post_init__(self) -> None:
        """Hold a population as a whole number, where one is given."""
        if self.population is not None:
            whole = check_whole("population", self.population, ge=1)
            object.__setattr__(self, "population", whole)

    @property
    def expected_users(self) -> float:
        """The expected number of users in a cohort.

        Raises:
            ConfigError: The population was not given.
        """
        if self.population is None:
            raise ConfigError("population must be given to know the expected number of users.")
        return self.rate * self.population

    @property
    def hides_cohort(self) -> bool:
        """Whether what the accountants charge assumes that nobody sees who took part.

        Nothing that is released or kept may then depend on who was drawn but the noised sum: no
        head-count of a round, no count of its replies, and no decision that looks at either.
        """
        return False

    @property
    def min_separation(self) -> int:
        """Rounds from one round of a user to the next, at least: 1 where a user may be in all.

        Only `CyclicSampling` keeps rounds apart. Under every other sampling a user may be drawn in
        every round, and the accountant of correlated noise has no use for the chance that they are
        not.
        """
        return 1

    def of_round(self, number: int) -> Sampling:
        """Return the sampling as it stands in one round's request.

        Args:
            number: The round, at least 1.

        Returns:
            Itself, unless the number of the round decides who takes part.
        """
        return self

    @abstractmethod
    def participants(
        self, user_ids: Sequence[str], *, key: bytes, count: int | None = None
    ) -> NDArray[np.bool_]:
        """Say which of a node's users take part in one round.

        Every user's coin is a keyed hash of the user's id: it does not depend on the other users,
        on their order or on the node, and nobody without the key can predict it.

        Args:
            user_ids: (n,) the ids of the users on this node, unique in the federation.
            key: 16 to 64 bytes, drawn afresh for every round and kept from everyone to whom the
                cohort must stay secret. A key used twice gives the same cohort twice, which no
                accountant of this package covers.
            count: For fixed-size sampling, how many of these users take part, from
                `allocate`; otherwise unused.

        Returns:
            (n,) bool.

        Raises:
            ConfigError: The key has the wrong length or ``count`` is missing or too large.
        """

    def allocate(self, head_counts: Sequence[int], random: RandomSource) -> list[int] | None:
        """Split a fixed-size cohort over the nodes; None where the nodes decide by themselves.

        Args:
            head_counts: The number of users on each node, at least 0.
            random: The source of the draw.

        Returns:
            For fixed-size sampling, the number of users to draw on each node; else None.

        Raises:
            ConfigError: A head-count is not a whole number of at least 0.
            FederationError: The nodes hold fewer users than the population.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Its method and arguments, as `from_dict` reads them back, and the rate."""
        return {"method": self.method, "rate": self.rate, **super().to_dict()}


@dataclass(frozen=True)
class FullParticipation(Sampling):
    """Every user takes part in every round.

    Args:
        population: Number of users in the federation, at least 1; None when it is not known.

    Raises:
        ConfigError: A value is out of range.
    """

    method: ClassVar[str] = "full"
    population: int | None = None
    rate: float = field(default=1.0, init=False, repr=False)

    def participants(
        self, user_ids: Sequence[str], *, key: bytes, count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) all True; see `Sampling.participants`."""
        return np.ones(len(user_ids), dtype=np.bool_)


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Every user flips an independent coin in every round.

    Args:
        rate: Probability of taking part, in (0, 1].
        population: Number of users in the federation, at least 1; None when it is not known. The
            privacy cost does not depend on it.

    Raises:
        ConfigError: A value is out of range.
    """

    method: ClassVar[str] = "poisson"
    rate: float
    population: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        rate = check_number("rate", self.rate, ge=2.0**-64, le=1)
        object.__setattr__(self, "rate", rate)
        super().__post_init__()

    @property
    def hides_cohort(self) -> bool:
        """True for a rate below 1; see `Sampling.hides_cohort`."""
        return self.rate < 1.0

    def participants(
        self, user_ids: Sequence[str], *, key: bytes, count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) each True with probability ``rate``; see `Sampling.participants`."""
        hashes = _keyed_hashes(user_ids, key)
        if self.rate == 1.0:
            return np.ones(len(user_ids), dtype=np.bool_)
        # rate * 2^64 is exact in a float, and below 2^64 because rate < 1.
        return hashes < np.uint64(int(self.rate * 2.0**64))


@dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """Every round draws the same number of users, without replacement.

    The sampling of most published federated experiments, usually accounted as Poisson sampling.
    It is accounted as what it is here, which costs more: a user who is not drawn is replaced by
    another one, so the sum moves by up to twice the norm bound.

    Args:
        sample_size: Users in every cohort, between 1 and ``population``.
        population: Number of users in the federation, at least 1.

    Raises:
        ConfigError: A value is out of range.
    """

    method: ClassVar[str] = "fixed-size"
    sample_size: int
    population: int = field(kw_only=True)
    rate: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("population", self.population, ge=1)
        super().__post_init__()
        size = check_whole("sample_size", self.sample_size, ge=1, le=self.population)
        object.__setattr__(self, "sample_size", size)
        object.__setattr__(self, "rate", size / self.population)

    @property
    def hides_cohort(self) -> bool:
        """True where somebody is left out; see `Sampling.hides_cohort`."""
        return self.sample_size < self.population

    def participants(
        self, user_ids: Sequence[str], *, key: bytes, count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) with exactly ``count`` True; see `Sampling.participants`."""
        if count is None:
            raise ConfigError("count must be given for fixed-size sampling, got None.")
        count = check_whole("count", count, ge=0, le=len(user_ids))
        lowest = np.argsort(_keyed_hashes(user_ids, key), kind="stable")[:count]
        chosen = np.zeros(len(user_ids), dtype=np.bool_)
        chosen[lowest] = True
        return chosen

    def allocate(self, head_counts: Sequence[int], random: RandomSource) -> list[int] | None:
        """Return how many users to draw on each node: multivariate hypergeometric.

        A population smaller than declared would make every user likelier to be drawn than the
        accountant was told, so it is refused; a larger one is harmless.
        """
        heads = [check_whole("head_counts", heads, ge=0) for heads in head_counts]
        total = sum(heads)
        if total < self.population:
            raise FederationError(
                f"The nodes hold {total} users where fixed-size sampling was accounted for a "
                f"population of {self.population}."
            )
        # The lowest of uniform marks are a uniform subset of all users.
        lowest = np.argsort(random.uint64(total), kind="stable")[: self.sample_size]
        node_of_user = np.repeat(np.arange(len(heads)), heads)  # (total,)
        drawn = np.bincount(node_of_user[lowest], minlength=len(heads))
        return [int(number) for number in drawn]


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
        user keeps one id for the whole run, and no round of correlated noise is asked
        twice. The ledger enforces the second (`PrivacyLedger`), also across restarts; the first is
        the duty of whoever loads the users.

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
        super().__post_init__()
        if self.round_number is not None:
            number = check_whole("round_number", self.round_number, ge=1, le=self.rounds)
            object.__setattr__(self, "round_number", number)

    @property
    def min_separation(self) -> int:
        """The number of groups."""
        return self.groups

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
        hashes = _hashes(user_ids, salt=bytes.fromhex(self.salt), person=b"privsyn-turns")
        return (hashes % np.uint64(self.groups)).astype(np.int64)

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
        if self.round_number is None:
            raise ConfigError("round_number must be given to say whose turn it is, got None.")
        asked: NDArray[np.bool_] = self.groups_of(user_ids) == (self.round_number - 1) % self.groups
        return asked


def _keyed_hashes(user_ids: Sequence[str], key: bytes) -> NDArray[np.uint64]:
    """Return (n,) uint64, the keyed BLAKE2b hash of every id."""
    if not isinstance(key, bytes) or not _MIN_KEY_BYTES <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ConfigError(
            f"key must be {_MIN_KEY_BYTES} to {hashlib.blake2b.MAX_KEY_SIZE} bytes, "
            f"got {len(key) if isinstance(key, bytes) else type(key).__name__}."
        )
    return _hashes(user_ids, key=key, person=b"privsyn-cohort")


def _hashes(user_ids: Sequence[str], **how: bytes) -> NDArray[np.uint64]:
    """Return (n,) uint64, a BLAKE2b hash of every id, by a key or a salt."""
    empty = hashlib.blake2b(digest_size=8, **how)  # type: ignore[arg-type]
    digests = bytearray()
    for user_id in user_ids:
        coin = empty.copy()  # the key schedule is paid once
        coin.update(user_id.encode())
        digests += coin.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)
