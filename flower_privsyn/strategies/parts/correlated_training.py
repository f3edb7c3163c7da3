"""Training on the nodes with noise that is correlated over the rounds: the settings of it.

`DPFTRL` has these settings and presets of papers; methods of several phases have them for the
phases that train.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from flower_privsyn.checks import PositiveInt, check_choice
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CyclicSampling,
    Factorisation,
    Phase,
    Sampling,
    TreeAggregation,
)
from flower_privsyn.strategies.parts.federated_training import FederatedTrainingConfig

#: Noise multipliers of Wang et al. 2023 by epsilon.
_WANG_TREES: Final[Mapping[str, float]] = {"1.77": 8.83, "18.71": 1.13}


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
    correlation: Annotated[
        Literal["blt", "banded", "tree"],
        '"blt": buffers; "banded": bands; "tree": binary trees as published.',
    ] = "blt"

    def __post_init__(self) -> None:
        """Check every value on its own and against the others."""
        super().__post_init__()
        sampling = str(self.sampling)  # subclasses know others
        if sampling != "cyclic" and self.correlation != "blt":
            raise ConfigError(
                f'correlation = "{self.correlation}" needs sampling = "cyclic", got sampling = '
                f'"{sampling}": the noise of its rounds is independent'
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
        matrix = self.factorisation(phase.rounds, phase.sampling.min_separation)
        return replace(phase, factorisation=matrix)

    def factorisation(self, rounds: int, min_separation: int) -> Factorisation:
        """The matrix that correlates the noise, for the momentum of the server.

        Args:
            rounds: >= 1.
            min_separation: of the rounds of one user, >= 1.
        """
        if self.correlation == "blt":
            return BufferedLinearToeplitz.optimal(
                rounds=rounds, min_separation=min_separation, momentum=self.server_momentum
            )
        if self.correlation == "banded":
            bands = min(min_separation, rounds)
            return BandedToeplitz.optimal(rounds=rounds, bands=bands, momentum=self.server_momentum)
        return TreeAggregation(rounds=rounds, restart_every=min_separation)
