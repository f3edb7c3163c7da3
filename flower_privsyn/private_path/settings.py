"""Settings of the strategies: one frozen dataclass per method, read from flat hyphenated keys."""

from __future__ import annotations

import difflib
import logging
import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from flower_privsyn.data import parse_cutoff
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    MOST_NODES_PER_USER,
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    Phase,
    PoissonSampling,
    Sampling,
)
from flower_privsyn.privacy.plan import BoundedQuestion
from flower_privsyn.private_path.attendance import default_least_users

logger = logging.getLogger("flwr.privsyn")

_NEGATIVE_IS_NONE = frozenset({"epsilon", "noise_multiplier", "min_users"})

#: Keys that nodes read from the run's configuration; a strategy leaves them alone.
CLIENT_KEYS = frozenset({"data", "client-column", "text-column", "date-column", "ray-address"})

#: Those of them that say who a user is and what they wrote; a resumed run keeps them.
NODE_KEYS = CLIENT_KEYS - {"ray-address"}


def check_number(
    key: str, value: object, *, low: float, high: float = math.inf, low_open: bool = False
) -> None:
    """Refuse a number outside [low, high], or (low, high], with a sentence that names the key."""
    bracket = "(" if low_open else "["
    allowed = f"{bracket}{low:g}, {high:g}]" if high < math.inf else f"{bracket}{low:g}, ...)"
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if ok:
        number = float(typing.cast(float, value))
        ok = (number > low if low_open else number >= low) and number <= high
    if not ok:
        raise ConfigError(f"{key} must be a number in {allowed}, got {value!r}")


def check_integer(key: str, value: object, *, low: int, high: int = 2**53) -> None:
    """Refuse anything but a whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{key} must be a whole number of at least {low}, got {value!r}")


def check_choice(key: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value outside a list."""
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"{key} must be one of {listed}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class PrivateSumConfig:
    """Settings that every strategy with a private sum shares.

    In a run configuration the keys are hyphenated (`num-rounds`), a negative `epsilon` or
    `noise-multiplier` means "computed from the other one", a negative `min-users` half of the
    users expected, and an empty `sampling` or `checkpoint` the method's own: turns for
    `DPFTRL` and everybody in every round for all others; the released judge for `KernelSketch` and
    the last round for `POPri`.

    Attributes:
        epsilon: privacy budget of the whole run, > 0; the noise multiplier follows from it.
        noise_multiplier: noise standard deviation over the clip norm (times `max_nodes_per_user`),
            >= 0, in place of `epsilon`. 0 means no noise and no privacy; the ledger says so.
        delta: target delta, in (0, 1); should stay below 1 / num_users.
        num_rounds: rounds of the private query, >= 1.
        num_users: users that must be on the nodes before the first round, or 0 for as many as
            there are. With fewer the run stops before any budget is spent.
        num_nodes: nodes to wait for, >= 1.
        sampling: "full", "poisson" (every user flips a coin in every round) or "fixed-size".
        sampling_rate: the coin's probability, in (0, 1], for "poisson".
        sample_size: users per round, >= 1, for "fixed-size".
        max_nodes_per_user: on how many nodes one `client_id` may be, >= 1. Every node clips by
            itself, so the noise grows by this factor. In a deployment nobody can check it.
        relation: neighbouring relation, "zero-out" (default), "add-remove" or "replace-one".
        accountant: "pld" (default) or "rdp" (as in the papers).
        min_users: rounds answered by fewer users are discarded; 0 discards those that nobody
            answered. None, in a run configuration a negative number: half of the users expected
            in a round. Under Poisson and fixed-size sampling there is none: who was drawn is
            secret.
        accept_noise: run also where the noise of a round drowns what all of its users together
            could say: without it such a run stops before anything is spent.
        embedding_model: sentence-transformers name, or path.
        embedding_precision: "float32" or "bfloat16".
        broadcast_precision: how candidates travel, "float16" or "float32".
        max_tokens: length of one private sample in tokens, >= 1.
        max_samples: samples of one user that take part, >= 1, a random subset fixed per user and
            seed; 0 for all of them, for queries whose clip bounds a user whatever their number.
        newer_than: ISO date; only text dated after it takes part (the cutoff of the public
            model's training data); "" for all.
        held_out_fraction: share of users, in [0, 1), that never take part and serve evaluation.
        seed: seed of everything public: seeds, variations, expansion. Noise and coins never
            come from it.
        node_timeout: seconds to wait for the nodes, > 0.
        round_timeout: seconds to wait for the replies of one round, > 0.
        run_dir: where the run is written; "" for a new folder under `~/privsyn-runs`.
        resume: continue the run in `run_dir`.
        node_settings: what nodes read from the same run configuration (`data`, `client-column` and
            the like), by key, for the run directory to know; not a key itself.
    """

    samplings: ClassVar[tuple[str, ...]] = ("full", "poisson", "fixed-size")

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float = 1e-6
    num_rounds: int = 11
    num_users: int = 0
    num_nodes: int = 2
    sampling: Literal["full", "poisson", "fixed-size"] = "full"
    sampling_rate: float = 1.0
    sample_size: int = 0
    max_nodes_per_user: int = 1
    relation: Literal["zero-out", "add-remove", "replace-one"] = "zero-out"
    accountant: Literal["pld", "rdp"] = "pld"
    min_users: int | None = None
    accept_noise: bool = False
    embedding_model: str = "all-MiniLM-L6-v2"
    embedding_precision: Literal["float32", "bfloat16"] = "float32"
    broadcast_precision: Literal["float16", "float32"] = "float16"
    max_tokens: int = 64
    max_samples: int = 8
    newer_than: str = ""
    held_out_fraction: float = 0.0
    seed: int = 0
    node_timeout: float = 300.0
    round_timeout: float = 3600.0
    run_dir: str = ""
    resume: bool = False
    node_settings: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError(
                f"give either epsilon or noise-multiplier, not both and not neither; got epsilon = "
                f"{self.epsilon} and noise-multiplier = {self.noise_multiplier} (in a run "
                "configuration a negative value means not given: --set epsilon=-1)"
            )
        if self.epsilon is not None:
            check_number("epsilon", self.epsilon, low=0, low_open=True)
        if self.noise_multiplier is not None:
            check_number("noise-multiplier", self.noise_multiplier, low=0, high=1e6)
            if 0 < self.noise_multiplier < 1e-3:
                raise ConfigError(
                    f"noise-multiplier must be 0 (no privacy) or at least 0.001, got "
                    f"{self.noise_multiplier}"
                )
        check_number("delta", self.delta, low=0, high=0.999999, low_open=True)
        for key in ("num_rounds", "num_nodes", "max_tokens"):
            check_integer(key.replace("_", "-"), getattr(self, key), low=1)
        for key in (
            "num_users",
            "sample_size",
            "max_samples",
            "seed",
        ):
            check_integer(key.replace("_", "-"), getattr(self, key), low=0)
        if self.min_users is not None:
            check_integer("min-users", self.min_users, low=0)
        check_choice("sampling", self.sampling, self.samplings)
        check_number("sampling-rate", self.sampling_rate, low=0, high=1, low_open=True)
        if self.sampling != "poisson" and self.sampling_rate != 1.0:
            raise ConfigError(
                f'sampling-rate = {self.sampling_rate} needs sampling = "poisson", got sampling = '
                f'"{self.sampling}"'
            )
        if (self.sampling == "fixed-size") != (self.sample_size > 0):
            raise ConfigError(
                f'sample-size >= 1 and sampling = "fixed-size" go together, got sample-size = '
                f'{self.sample_size} and sampling = "{self.sampling}"'
            )
        check_integer("max-nodes-per-user", self.max_nodes_per_user, low=1)
        check_choice("relation", self.relation, [r.value for r in NeighboringRelation])
        check_choice("accountant", self.accountant, ("pld", "rdp"))
        self._check_accounting()
        check_choice("embedding-precision", self.embedding_precision, ("float32", "bfloat16"))
        check_choice("broadcast-precision", self.broadcast_precision, ("float16", "float32"))
        check_number("held-out-fraction", self.held_out_fraction, low=0, high=0.99)
        check_number("node-timeout", self.node_timeout, low=0, low_open=True)
        check_number("round-timeout", self.round_timeout, low=0, low_open=True)
        if self.newer_than:
            parse_cutoff(self.newer_than)
        if self.resume and not self.run_dir:
            raise ConfigError("resume = true needs run-dir, the folder of the run to continue")

    def _check_accounting(self) -> None:
        """Refuse combinations for which there is no bound."""
        draws = self.sampling == "fixed-size" or (
            self.sampling == "poisson" and self.sampling_rate < 1.0
        )
        if draws and self.min_users:
            raise ConfigError(
                f'min-users = {self.min_users} needs sampling = "full", got "{self.sampling}": '
                "whether a round is released would tell who was drawn"
            )
        if self.sampling == "fixed-size" and self.relation == "add-remove":
            raise ConfigError(
                'sampling = "fixed-size" needs relation = "zero-out" or "replace-one", got '
                '"add-remove": a fixed number of users cannot be drawn from one fewer'
            )
        self._check_nodes_per_user()
        if (
            self.sampling == "poisson"
            and self.relation == "replace-one"
            and self.accountant == "rdp"
        ):
            raise ConfigError(
                'sampling = "poisson" with relation = "replace-one" needs accountant = "pld", got '
                '"rdp"'
            )

    def _check_nodes_per_user(self) -> None:
        """Refuse what is not accounted for a user on several nodes."""
        nodes = self.max_nodes_per_user
        if nodes > MOST_NODES_PER_USER:
            raise ConfigError(
                f"max-nodes-per-user must be at most {MOST_NODES_PER_USER}, got {nodes}"
            )
        if nodes == 1:
            return
        given = f"max-nodes-per-user = {nodes} needs"
        if self.sampling == "fixed-size":
            raise ConfigError(
                f'{given} another sampling than "fixed-size": who is on several nodes is drawn on '
                "each of them, and there is no bound for that"
            )
        if self.sampling == "poisson" and self.sampling_rate < 1:
            if self.relation == "replace-one":
                raise ConfigError(
                    f'{given} relation = "zero-out" or "add-remove" with sampling = "poisson", got '
                    '"replace-one"'
                )
            if self.accountant != "pld":
                raise ConfigError(
                    f'{given} accountant = "pld" with sampling = "poisson", where a user flips a '
                    f'coin on every node, got "{self.accountant}"'
                )

    @classmethod
    def from_run_config(
        cls, run_config: Mapping[str, Any], *, other_keys: Collection[str] = ()
    ) -> Self:
        """Read flat hyphenated keys, as in `[tool.flwr.app.config]`.

        Args:
            run_config: `context.run_config`.
            other_keys: keys that belong to the rest of your app.

        Raises:
            ConfigError: a key is unknown, or its value has the wrong type or is out of range.
        """
        kinds = typing.get_type_hints(cls)
        known = {key.replace("_", "-"): key for key in cls._names()}
        values: dict[str, Any] = {
            "node_settings": tuple(
                (key, str(run_config[key])) for key in sorted(NODE_KEYS & set(run_config))
            )
        }
        for key, value in run_config.items():
            if key in CLIENT_KEYS or key in other_keys:
                continue
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f'; did you mean "{close[0]}"?' if close else ""
                raise ConfigError(f'unknown key "{key}" in the run configuration{hint}')
            name = known[key]
            if name in _NEGATIVE_IS_NONE and isinstance(value, int | float):
                value = None if value < 0 else value
            if name in ("sampling", "checkpoint") and value == "":
                continue
            values[name] = _typed(key, value, kinds[name])
        return cls(**values)

    @classmethod
    def keys(cls) -> frozenset[str]:
        """The hyphenated keys of these settings."""
        return frozenset(name.replace("_", "-") for name in cls._names())

    @classmethod
    def _names(cls) -> list[str]:
        """The fields that are keys of a run configuration."""
        return [field.name for field in fields(cls) if field.name != "node_settings"]

    def to_dict(self) -> dict[str, Any]:
        """The settings under their hyphenated keys."""
        return {name.replace("_", "-"): getattr(self, name) for name in self._names()}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The default of every setting under its hyphenated key."""
        names = set(cls._names())
        return {f.name.replace("_", "-"): f.default for f in fields(cls) if f.name in names}

    def sampling_of(self, population: int) -> Sampling:
        """Who takes part in a round, given the size of the roster.

        Raises:
            ConfigError: more users are to be drawn than there are.
        """
        if self.sampling == "poisson":
            return PoissonSampling(rate=self.sampling_rate, population=population)
        if self.sampling == "fixed-size":
            if self.sample_size > population:
                raise ConfigError(
                    f"sample-size = {self.sample_size} is more than the {population} users there "
                    "are"
                )
            return FixedSizeSampling(sample_size=self.sample_size, population=population)
        return FullParticipation(population=population)

    def phase(self, population: int, *, asks: tuple[BoundedQuestion, ...]) -> Phase:
        """All rounds as one phase, as these settings have them.

        Args:
            population: users on the roster, or the fewest there must be.
            asks: what the rounds ask.
        """
        return Phase(
            name="rounds",
            rounds=self.num_rounds,
            sampling=self.sampling_of(population),
            asks=asks,
            noise_multiplier=self.noise_multiplier,
        )

    def required_users(self, sampling: Sampling) -> int:
        """Users whose answers a round needs to be released; 0 where the cohort is secret.

        Args:
            sampling: who takes part, with the population.

        Raises:
            ConfigError: more are required than are expected in a round.
        """
        if sampling.hides_cohort:
            return 0
        if self.min_users is None:
            return default_least_users(sampling)
        if self.min_users > sampling.expected_users:
            raise ConfigError(
                f"min-users = {self.min_users} is more than the {sampling.expected_users:g} users "
                "expected in a round: every round would be discarded"
            )
        return max(1, self.min_users)

    def check_delta(self, population: int) -> None:
        """Warn when delta allows to publish one user's data outright."""
        if population and self.delta >= 1 / population:
            logger.warning(
                "delta = %g is not below 1 / %d users = %g: at such a delta even publishing one "
                "random user's text would count as private",
                self.delta,
                population,
                1 / population,
            )


def _typed(key: str, value: Any, hint: Any) -> Any:
    """Check a scalar of a run configuration against a field's type."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is type(None) and value is None:
            return None
        if typing.get_origin(option) is Literal:
            return value  # its own check names the choices
        if option is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if option in (str, bool) and isinstance(value, option):
            return value
    names = {float: "a number", int: "an integer", str: "a string", bool: "true or false"}
    allowed = " or ".join(names[o] for o in options if o in names)
    raise ConfigError(f"{key} must be {allowed}, got {value!r}")
