"""Settings of the strategies: one frozen dataclass per method, read from flat hyphenated keys."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.checks import (
    IN_PYTHON,
    NonNegativeInt,
    OrZero,
    PositiveFloat,
    PositiveInt,
    Settings,
)
from flower_privsyn.data import parse_min_date
from flower_privsyn.data.load import COLUMNS
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    CyclicSampling,
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    Phase,
    Plan,
    PoissonSampling,
    Release,
    Sampling,
)
from flower_privsyn.privacy.accounting import (
    LARGEST_MULTIPLIER,
    LEAST_MULTIPLIER,
    MOST_NODES_PER_USER,
)
from flower_privsyn.privacy.plan import BoundedQuestion
from flower_privsyn.run_config import SETTINGS, unfolded
from flower_privsyn.secure_aggregation.terms import Terms

logger = logging.getLogger("flwr.privsyn")

#: Keys that nodes read from the run's configuration, and that a strategy leaves alone: they say who
#: a user is and what they wrote, and a resumed run keeps them.
CLIENT_KEYS = frozenset({"data", *COLUMNS})


def unknown_keys(keys: Sequence[str], known: Collection[str], where: str) -> str:
    """What is said of keys that no setting has, each with the one that may have been meant."""
    told = []
    for key in keys:
        close = difflib.get_close_matches(key, known, n=1)
        told.append(f'"{key}"' + (f' (did you mean "{close[0]}"?)' if close else ""))
    return f"unknown key{'s' if len(keys) > 1 else ''} {', '.join(told)} in {where}"


def default_least_users(sampling: Sampling) -> int:
    """Users whose answers a round needs where nothing was set: half of those expected, at least 1.

    Groups that take turns are dealt by a hash, so their sizes vary: four standard deviations
    below the average are still a whole group.

    Args:
        sampling: of a public cohort, with its population.
    """
    expected = sampling.expected_users
    least = expected / 2
    if isinstance(sampling, CyclicSampling):
        least = min(least, expected - 4 * math.sqrt(expected))
    return max(1, math.ceil(least))


@dataclass(frozen=True, kw_only=True)
class PrivateSumConfig(Settings):
    """Settings that every strategy with a private sum shares.

    In a run configuration the keys are hyphenated (`num-rounds`), a negative `epsilon` or
    `noise-multiplier` means "computed from the other one", a negative `min-users` half of the
    users expected, and an empty `sampling` the method's own: turns for `DPFTRL`, everybody in every
    round for all others.
    """

    #: Keys that the result alone is made by: once every round has been asked, a resumed run may
    #: change them.
    afterwards: ClassVar[frozenset[str]] = frozenset()

    epsilon: Annotated[float | None, Gt(0)] = None
    """Privacy budget of the whole run; the noise multiplier follows from it."""
    noise_multiplier: Annotated[
        float | None, OrZero("no privacy"), Ge(LEAST_MULTIPLIER), Le(LARGEST_MULTIPLIER)
    ] = None
    """Noise standard deviation over the clip norm (times `max_nodes_per_user`), in place of
    `epsilon`. 0 means no noise and no privacy; the ledger says so.
    """
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-6
    """Target delta; should stay below 1 / num_users."""
    num_rounds: PositiveInt = 11
    """Rounds of the private query."""
    num_users: NonNegativeInt = 0
    """Users that must be on the nodes before the first round, or 0 for as many as there are. With
    fewer the run stops before any budget is spent.
    """
    num_nodes: PositiveInt = 2
    """Nodes to wait for. A deployed run that is resumed may wait for fewer, without those that are
    gone for good, but under secure aggregation.
    """
    sampling: Literal["full", "poisson", "fixed-size"] = "full"
    """Who takes part: everybody; "poisson": every user flips a coin in every round; "fixed-size":
    as many users are drawn in every round.
    """
    sampling_rate: Annotated[float, Ge(1e-18), Le(1)] = 1.0
    """The coin's probability, for "poisson"."""
    sample_size: NonNegativeInt = 0
    """Users per round, for "fixed-size"; 0 otherwise."""
    max_nodes_per_user: Annotated[int, Ge(1), Le(MOST_NODES_PER_USER)] = 1
    """On how many nodes one `client_id` may be. Every node clips by itself, so the noise grows by
    this factor. In a deployment nobody can check it.
    """
    relation: Literal["zero-out", "add-remove", "replace-one"] = "zero-out"
    """Neighbouring relation."""
    accountant: Literal["pld", "rdp"] = "pld"
    """Accountant; the papers use "rdp"."""
    min_users: Annotated[int | None, Ge(0)] = None
    """A round that fewer users answer is discarded; 0: only one that nobody answers. None, in a run
    configuration a negative number: half of the users expected in a round. Not for Poisson and
    fixed-size sampling, where the number of answers would tell of who was drawn. Under secure
    aggregation `least_nodes` takes its place.
    """
    secure_aggregation: bool = False
    """Aggregate answers securely: the server sees one noised sum of all nodes and no node's own;
    every node adds its share of the noise. Takes at least 4 nodes.
    """
    least_nodes: Annotated[int | None, Ge(2)] = None
    """Fewest nodes in a securely aggregated sum: a round that fewer answer ends without a release,
    charged. None, in a run configuration a negative number: all but an eighth of the nodes.
    """
    colluding_nodes: Annotated[int | None, Ge(0)] = None
    """Nodes that may tell the server all they know, their noise included, without harm to the
    others under secure aggregation: the fewer are left, the more noise each adds. None, in a run
    configuration a negative number: a third of the nodes.
    """
    accept_noise: bool = False
    """Run also where the noise of a round drowns what all of its users together could say, or that
    of all rounds alone would destroy the model that is trained: without it such a run stops before
    anything is spent.
    """
    embedding_model: str = "all-MiniLM-L6-v2"
    """Sentence-transformers name, or path."""
    embedding_precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of embeddings; "bfloat16" where the hardware multiplies it natively."""
    broadcast_precision: Annotated[Literal["float16", "float32"], IN_PYTHON] = "float16"
    """How candidates travel."""
    max_tokens: PositiveInt = 64
    """Length of one private sample in tokens."""
    max_samples: NonNegativeInt = 8
    """Samples of one user that take part, a random subset fixed per user and seed; 0 for all of
    them, for queries whose clip bounds a user whatever their number.
    """
    min_date: str = ""
    """ISO date; only text of that day and later takes part (of the day after the public model's
    training data ends); "" for all.
    """
    held_out_fraction: Annotated[float, Ge(0), Le(0.99)] = 0.0
    """Share of users that never take part and serve evaluation."""
    seed: NonNegativeInt = 0
    """Seed of everything public: seeds, variations, expansion. Noise and coins never come from it.
    """
    node_timeout: PositiveFloat = 300.0
    """Seconds to wait for the nodes."""
    round_timeout: PositiveFloat = 3600.0
    """Seconds to wait for the replies of one round."""
    run_dir: str = ""
    """Where the run is written; "" for a new one in `runs/`, of `flwr run` in `~/privsyn-runs`."""
    resume: bool | Literal["auto"] = False
    """Continue the run in `run_dir`; "auto": begin it where there is none, continue one that has
    not finished, and give the result of one that has, for a ServerApp that something restarts.
    """
    tracker: Literal["", "tensorboard", "mlflow", "wandb"] = ""
    """Where the figures of every round go beside the run directory; "" for nowhere."""
    node_settings: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """What nodes read from the same run configuration (`data`, `client-column` and the like), by
    key, for the run directory to know; not a key itself.
    """

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigError(
                "neither epsilon nor noise-multiplier is given (a negative number means not given, "
                "in a run configuration): set epsilon to a number above 0, or noise-multiplier to "
                "one of at least 0"
            )
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise ConfigError(
                f"epsilon = {self.epsilon} and noise-multiplier = {self.noise_multiplier} are both "
                "given, and each says how much noise there is: give one (in a run configuration a "
                "negative number takes one back: --set epsilon=-1)"
            )
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
        self._check_accounting()
        self._check_secure_aggregation()
        if self.min_date:
            parse_min_date(self.min_date)
        if self.resume and not self.run_dir:
            said = json.dumps(self.resume)
            raise ConfigError(f"resume = {said} needs run-dir, the folder of the run to continue")

    @classmethod
    def given(cls, config: object, settings: Mapping[str, Any], *, strategy: str) -> Self:
        """The settings that a strategy is made with: an object of this class, or keywords.

        Args:
            config: an object of this class; None where keywords are given.
            settings: the keywords, by the names of the fields.
            strategy: its name.

        Raises:
            ConfigError: it is something else, or of another strategy; or there is no such keyword.
        """
        if unknown := [name for name in settings if name not in cls.declared]:
            raise ConfigError(unknown_keys(unknown, cls.declared, f"{strategy}(...)"))
        if config is None:
            return cls(**settings)
        if isinstance(config, cls):
            return replace(config, **settings)
        given = config if isinstance(config, type) else type(config)
        raise ConfigError(f"{strategy} takes a {cls.__name__}(...) or its keywords, got {given}")

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
        Release(
            noise_multiplier=1.0,
            sampling=PrivateSumConfig.sampling_of(self, max(1, self.sample_size)),
            relation=NeighboringRelation(self.relation),
            max_nodes_per_user=self.max_nodes_per_user,
        )

    def _check_secure_aggregation(self) -> None:
        """Refuse what secure aggregation does not do, and too few nodes for it."""
        if not self.secure_aggregation:
            for name in ("least_nodes", "colluding_nodes"):
                if (value := getattr(self, name)) is not None:
                    raise ConfigError(
                        f"{name.replace('_', '-')} = {value} needs secure-aggregation = true"
                    )
            return
        given = "secure-aggregation = true needs"
        if self.sampling == "fixed-size":
            raise ConfigError(
                f'{given} sampling = "full" or "poisson", got "fixed-size": how many users a node '
                "draws would have to be told to it by the server"
            )
        if self.min_users:
            raise ConfigError(
                f"{given} min-users = 0 or none, got {self.min_users}: the server counts no users, "
                "and least-nodes says which rounds are released"
            )
        if self.noise_multiplier == 0.0:
            raise ConfigError(
                f"{given} noise: no node answers with noise-multiplier = 0, which would show the "
                "exact sum"
            )
        self.secure_terms(self.num_nodes)

    def secure_terms(self, nodes: int) -> Terms | None:
        """The terms of secure aggregation for a roster; None without it.

        Args:
            nodes: on the roster.

        Raises:
            ConfigError: they are too few.
        """
        if not self.secure_aggregation:
            return None
        return Terms.of(nodes, least_nodes=self.least_nodes, colluding=self.colluding_nodes)

    @property
    def noise_times(self) -> float:
        """The noise in a sum of all nodes over the noise that is accounted for.

        Above 1 under secure aggregation, where nodes may be lost or take theirs out.
        """
        terms = self.secure_terms(self.num_nodes)
        return 1.0 if terms is None else terms.noise_share * math.sqrt(self.num_nodes)

    @classmethod
    def from_run_config(
        cls, run_config: Mapping[str, Any], *, other_keys: Collection[str] = ()
    ) -> Self:
        """Read flat hyphenated keys, as in `[tool.flwr.app.config]` and in its `settings`.

        Args:
            run_config: `context.run_config`.
            other_keys: keys that belong to the rest of your app.

        Raises:
            ConfigError: a key is unknown, or its value has the wrong type or is out of range;
                `settings` is no TOML, or has a key that stands beside it too.
        """
        run_config = unfolded(run_config)
        known = cls.keys()
        values: dict[str, Any] = {
            "node_settings": tuple(
                (key, str(run_config[key])) for key in sorted(CLIENT_KEYS & set(run_config))
            )
        }
        others = {*CLIENT_KEYS, *other_keys, SETTINGS}
        own = [key for key in run_config if key not in others]
        if unknown := [key for key in own if key not in known]:
            raise ConfigError(
                unknown_keys(unknown, known | others, "the run configuration")
                + "; an app names keys of its own in other_keys"
            )
        for key in own:
            value = run_config[key]
            name = key.replace("-", "_")
            if cls.declared[name].optional and isinstance(value, int | float) and value < 0:
                value = None  # which a run configuration cannot hold
            if name == "sampling" and value == "":
                continue  # every method may have another default: an app of several leaves it
            values[name] = value
        return cls(**values)

    @classmethod
    def keys(cls) -> frozenset[str]:
        """The hyphenated keys that a run configuration may have."""
        own = (name for name in cls._names() if not cls.declared[name].in_python)
        return frozenset(name.replace("_", "-") for name in own)

    @classmethod
    def _names(cls) -> list[str]:
        """The fields that are settings of the method."""
        return [name for name in cls.declared if name != "node_settings"]

    def to_dict(self) -> dict[str, Any]:
        """The settings under their hyphenated keys."""
        return {name.replace("_", "-"): getattr(self, name) for name in self._names()}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The default of every setting under its hyphenated key."""
        return {name.replace("_", "-"): cls.declared[name].default for name in cls._names()}

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that documents are of, which are public; none where they have none."""
        return ()

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

    def phase(
        self, population: int, *, asks: tuple[BoundedQuestion, ...], rounds: int | None = None
    ) -> Phase:
        """Rounds as one phase, as these settings have them.

        Args:
            population: users on the roster, or the fewest there must be.
            asks: what the rounds ask.
            rounds: in place of all there are.
        """
        return Phase(
            name="rounds",
            rounds=rounds or self.num_rounds,
            sampling=self.sampling_of(population),
            asks=asks,
            noise_multiplier=self.noise_multiplier,
        )

    def plan(self, phases: tuple[Phase, ...]) -> Plan:
        """Phases under the budget's terms, as these settings have them.

        Args:
            phases: of the run, or some of them.
        """
        return Plan(
            phases=phases,
            delta=self.delta,
            relation=NeighboringRelation(self.relation),
            accountant=self.accountant,
            max_nodes_per_user=self.max_nodes_per_user,
        )

    def required_users(self, sampling: Sampling) -> int:
        """Users whose answers a round needs to be released; 0 where nobody counts them.

        That is where the cohort is secret, and under secure aggregation: a sum of `least_nodes`
        nodes is out, and has cost what it costs, when the server learns whose it is.

        Args:
            sampling: who takes part, with the population.

        Raises:
            ConfigError: more are required than are expected in a round.
        """
        if sampling.hides_cohort or self.secure_aggregation:
            return 0
        if self.min_users is None:
            return default_least_users(sampling)
        if self.min_users > sampling.expected_users:
            raise ConfigError(
                f"min-users = {self.min_users} is more than the {sampling.expected_users:g} users "
                "expected in a round: every round would be discarded"
            )
        return max(1, self.min_users)

    def large_delta(self, population: int) -> str | None:
        """What is said where delta allows to publish one user's data outright; None elsewhere."""
        if not population or self.delta < 1 / population:
            return None
        return (
            f"delta = {self.delta:g} is not below 1 / {population:,} users: even publishing one "
            "random user's text would count as private"
        )
