"""Which users take part in a round; the same object tells the accountant."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.privacy.randomness import RandomSource

_MIN_KEY_BYTES = 16


class Sampling(ABC):
    """How the cohort of a round is drawn.

    One object decides who takes part (`participants`, `allocate`) and is what the
    accountants read, so the two cannot disagree. Subclasses: `FullParticipation`,
    `PoissonSampling`, `FixedSizeSampling`, and `CyclicSampling` for correlated noise.
    """

    method: ClassVar[str]
    _by_method: ClassVar[dict[str, Any]] = {}
    rate: float
    """The expected fraction of the population in a cohort, in (0, 1]."""
    population: int | None
    """The number of users in the federation, where it is known."""
    round_number: int | None = None
    """The round that this is the sampling of, where users take turns; None for the plan."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have `from_dict` know the class."""
        super().__init_subclass__(**kwargs)
        if "method" in cls.__dict__:
            Sampling._by_method[cls.method] = cls

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
    def takes_turns(self) -> bool:
        """Whether the number of a round says which of the groups of users is asked."""
        return False

    def of_round(self, number: int) -> Sampling:
        """Return the sampling as it stands in one round's request.

        Args:
            number: The round, at least 1.

        Returns:
            Itself, unless the number of the round decides who takes part.
        """
        del number
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
        del head_counts, random
        return None

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able description that `from_dict` reads back."""

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> Sampling:
        """Rebuild a sampling from `to_dict`.

        Args:
            description: ``method`` ("full", "poisson", "fixed-size" or "cyclic"), ``population``
                (int or None), and what the method needs beyond.

        Raises:
            ConfigError: The method is unknown or a value is missing or out of range.
        """
        method = description.get("method")
        known = Sampling._by_method.get(method) if isinstance(method, str) else None
        if known is None:
            listed = ", ".join(f'"{name}"' for name in Sampling._by_method)
            raise ConfigError(f"sampling method must be one of {listed}, got {method!r}.")
        keys = [one.name for one in fields(known) if one.init]
        found: Sampling = known(**{key: description.get(key) for key in keys})
        return found


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

    def __post_init__(self) -> None:
        set_population(self, required=False)

    def participants(
        self, user_ids: Sequence[str], *, key: bytes, count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) all True; see `Sampling.participants`."""
        del key, count
        return np.ones(len(user_ids), dtype=np.bool_)

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "full", "rate": 1.0, "population": ...}``."""
        return {"method": self.method, "rate": 1.0, "population": self.population}


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
        set_population(self, required=False)

    @property
    def hides_cohort(self) -> bool:
        """True for a rate below 1; see `Sampling.hides_cohort`."""
        return self.rate < 1.0

    def participants(
        self, user_ids: Sequence[str], *, key: bytes, count: int | None = None
    ) -> NDArray[np.bool_]:
        """Return (n,) each True with probability ``rate``; see `Sampling.participants`."""
        del count
        hashes = _keyed_hashes(user_ids, key)
        if self.rate == 1.0:
            return np.ones(len(user_ids), dtype=np.bool_)
        # rate * 2^64 is exact in a float, and below 2^64 because rate < 1.
        return hashes < np.uint64(int(self.rate * 2.0**64))

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "poisson", "rate": ..., "population": ...}``."""
        return {"method": self.method, "rate": self.rate, "population": self.population}


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
        set_population(self, required=True)
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

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"method": "fixed-size", "sample_size": ..., "population": ...}``."""
        return {
            "method": self.method,
            "sample_size": self.sample_size,
            "population": self.population,
        }


def set_population(sampling: Sampling, *, required: bool) -> None:
    """Check the population of a sampling that is being made; None only where it is not required."""
    if sampling.population is None and not required:
        return
    object.__setattr__(sampling, "population", check_whole("population", sampling.population, ge=1))


def _keyed_hashes(user_ids: Sequence[str], key: bytes) -> NDArray[np.uint64]:
    """Return (n,) uint64, the keyed BLAKE2b hash of every id."""
    if not isinstance(key, bytes) or not _MIN_KEY_BYTES <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ConfigError(
            f"key must be {_MIN_KEY_BYTES} to {hashlib.blake2b.MAX_KEY_SIZE} bytes, "
            f"got {len(key) if isinstance(key, bytes) else type(key).__name__}."
        )
    empty = hashlib.blake2b(digest_size=8, key=key, person=b"privsyn-cohort")
    digests = bytearray()
    for user_id in user_ids:
        coin = empty.copy()  # the key schedule is paid once
        coin.update(user_id.encode())
        digests += coin.digest()
    return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)
