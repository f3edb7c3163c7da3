"""Training on the nodes with noise that is correlated over the rounds: the settings of it.

`DPFTRL` has these settings and presets of papers; methods of several phases have them for the
phases that train.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Le

from flower_privsyn.checks import NonNegativeInt, PositiveInt, check_choice
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CyclicSampling,
    Factorisation,
    Participation,
    Phase,
    Sampling,
    TreeAggregation,
    participation_of,
)
from flower_privsyn.strategies.parts.federated_training import FederatedTrainingConfig

#: Noise multipliers of Wang et al. 2023 by epsilon.
_WANG_TREES: Final[Mapping[str, float]] = {"1.77": 8.83, "18.71": 1.13}

#: What says how often a user takes part, and how noise is correlated. A separation is none of it:
#: an app has one in its file whatever the sampling.
_OF_TURNS: Final = frozenset(
    {
        "max_participations",
        "correlation",
        "noise_buffers",
        "noise_bands",
        "tree_restart",
    }
)


def wang_federation(epsilon: str) -> dict[str, Any]:
    """The federated settings that Wang et al. 2023 print, by their names here.

    1,600 rounds of 100 of 342,000 users, each at most once, under the noise of trees; each passes
    over at most 256 samples of 20 tokens in batches of 16.

    Args:
        epsilon: as printed.

    Raises:
        ConfigError: no such epsilon is printed.
    """
    check_choice("epsilon", epsilon, tuple(_WANG_TREES))
    return {
        "noise_multiplier": _WANG_TREES[epsilon],
        "delta": 1e-6,
        "num_rounds": 1_600,
        "min_separation": 3_420,
        "max_participations": 1,
        "correlation": "tree",
        "accountant": "rdp",
        "max_tokens": 20,
        "max_samples": 256,
        "local_batch_size": 16,
        "local_steps": 0,
        "server_learning_rate": 1.0,
    }


@dataclass(frozen=True, kw_only=True)
class CorrelatedTrainingConfig(FederatedTrainingConfig):
    """Settings of every strategy whose training has correlated noise.

    References:
        Kairouz et al. 2021, Algorithm 1; McMahan, Xu, Zhang 2024; Choquette-Choo et al. 2023.
    """

    sampling: Annotated[
        Literal["cyclic"],
        "who takes part: users are dealt to `min_separation` groups that take turns.",
    ] = "cyclic"  # type: ignore[assignment]
    noise_multiplier: Annotated[
        float | None,
        "standard deviation of the fresh part of a round's noise over the clip norm, as papers on "
        "DP-FTRL state it: of one node of a tree. What all rounds cost is this over the "
        "sensitivity of the correlation, and follows from the participation.",
    ] = None
    min_separation: Annotated[
        PositiveInt,
        "b, rounds from one participation of a user to the next. About num_users / min_separation "
        "users take part in a round. At 1 everybody takes part in every round, and no correlation "
        "is worth having: that is DP-FedAvg.",
    ] = 10
    max_participations: Annotated[
        NonNegativeInt,
        "rounds that one user may take part in, or 0 for as many as `num_rounds` and "
        "`min_separation` leave room for; more rounds than it allows are refused.",
    ] = 0
    correlation: Annotated[
        Literal["blt", "banded", "tree"],
        '"blt": buffers; "banded": bands; "tree": binary trees as published.',
    ] = "blt"
    noise_buffers: Annotated[
        int,
        Ge(0),
        Le(5),
        'for "blt": vectors of the model\'s size that are kept, or 0 for as many as are worth it.',
    ] = 0
    noise_bands: Annotated[
        NonNegativeInt,
        'for "banded": rounds that a round\'s noise depends on, itself included, up to '
        "`min_separation`, or 0 for that; all but one are kept.",
    ] = 0
    tree_restart: Annotated[
        NonNegativeInt,
        'for "tree": rounds per tree, or 0 for one pass over the users, `min_separation`.',
    ] = 0

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        self._refuse_without_turns()
        self._refuse_unused("noise-buffers", self.noise_buffers, "blt")
        self._refuse_unused("noise-bands", self.noise_bands, "banded")
        self._refuse_unused("tree-restart", self.tree_restart, "tree")
        if self.noise_bands > self.min_separation:
            raise ConfigError(
                f"noise-bands = {self.noise_bands} must be at most min-separation = "
                f"{self.min_separation}"
            )
        train = self.rounds_that_train
        turns = -(-train // self.min_separation)
        if 0 < self.max_participations < turns:
            of_them = "" if train == self.num_rounds else f" ({train} of them train)"
            raise ConfigError(
                f"max-participations = {self.max_participations} is less than the {turns} turns of "
                f"a user in num-rounds = {self.num_rounds}{of_them} with min-separation = "
                f"{self.min_separation}: use fewer rounds or a larger separation"
            )

    @property
    def rounds_that_train(self) -> int:
        """Rounds in which users take turns: all, unless the first one asks everybody."""
        return self.num_rounds

    def _refuse_without_turns(self) -> None:
        """Refuse settings of turns and of correlated noise that another sampling has no use for."""
        sampling = str(self.sampling)  # subclasses know others
        if sampling == "cyclic":
            return
        for field in fields(self):
            if field.name in _OF_TURNS and (value := getattr(self, field.name)) != field.default:
                raise ConfigError(
                    f"{field.name.replace('_', '-')} = {json.dumps(value)} needs sampling = "
                    f'"cyclic", got sampling = "{sampling}": the noise of its rounds is independent'
                )

    def _refuse_unused(self, key: str, value: int, correlation: str) -> None:
        if value and self.correlation != correlation:
            raise ConfigError(
                f'{key} = {value} needs correlation = "{correlation}", got correlation = '
                f'"{self.correlation}"'
            )

    def sampling_of(self, population: int) -> Sampling:
        """Groups that take turns, dealt by a public hash of the users' ids and the seed."""
        return CyclicSampling(
            groups=self.min_separation,
            rounds=self.num_rounds,
            salt=self.salt,
            population=population,
        )

    @property
    def salt(self) -> str:
        """By which users are dealt to groups, public."""
        return hashlib.blake2b(f"turns {self.seed}".encode(), digest_size=16).hexdigest()

    def correlated(self, phase: Phase) -> Phase:
        """A phase of these settings with the matrix for how often it asks a user."""
        participation = participation_of(phase.sampling, rounds=phase.rounds)
        return replace(phase, factorisation=self.factorisation(participation))

    def factorisation(self, participation: Participation) -> Factorisation:
        """The matrix that correlates the noise, for the momentum of the server.

        Args:
            participation: how often and how far apart users take part in the rounds.
        """
        rounds, gap = participation.rounds, participation.min_separation
        if self.correlation == "blt":
            return BufferedLinearToeplitz.optimal(
                participation,
                buffers=self.noise_buffers or None,
                momentum=self.server_momentum,
            )
        if self.correlation == "banded":
            bands = min(self.noise_bands or gap, rounds)
            return BandedToeplitz.optimal(rounds=rounds, bands=bands, momentum=self.server_momentum)
        return TreeAggregation(rounds=rounds, restart_every=self.tree_restart or gap)
