"""DP-FTRL: training on the nodes with noise that is correlated over the rounds.

Papers:
    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu: "Practical and Private (Deep) Learning Without
    Sampling or Shuffling" (ICML 2021), Algorithm 1: trees.
    McMahan, Xu, Zhang: "A Hassle-free Algorithm for Private Learning in Practice: Don't Use Tree
    Aggregation, Use BLTs" (2024): buffers, the default here.
    Choquette-Choo et al.: "(Amplified) Banded Matrix Factorization: A unified approach to private
    training" (2023): bands, and users who come back after b rounds at the earliest.

Algorithm 1 of Kairouz et al., for users instead of records:
    a fixed order of the users, a cohort a round                `CyclicSampling`
    the gradient, clipped to norm C                             `ModelDelta`, as in DP-FedAvg
    AddToTree, GetSum: the running total plus tree noise        `TreeAggregation`
    theta_t from the noisy total of all rounds                  `FederatedTraining.step`, which
                                                                adds up noisy rounds: the same sum
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal, final

from flower_privsyn.checks import PositiveInt
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CyclicSampling,
    Factorisation,
    Phase,
    Sampling,
    TreeAggregation,
)
from flower_privsyn.privacy.plan import BoundedQuestion
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._training import FederatedTraining, FederatedTrainingConfig


@dataclass(frozen=True, kw_only=True)
class DPFTRLConfig(FederatedTrainingConfig):
    """Settings of `DPFTRL`, and of every strategy that trains as it does.

    References:
        Kairouz et al. 2021, Algorithm 1; McMahan, Xu, Zhang 2024; Choquette-Choo et al. 2023.
    """

    sampling: Literal["cyclic"] = "cyclic"  # type: ignore[assignment]
    """Who takes part: users are dealt to `min_separation` groups that take turns."""
    noise_multiplier: float | None = None
    """Standard deviation of the fresh part of a round's noise over the clip norm, as papers on
    DP-FTRL state it: of one node of a tree. What all rounds cost is this over the sensitivity of
    the correlation, and follows from the participation.
    """
    min_separation: PositiveInt = 10
    """b, rounds from one participation of a user to the next. About num_users / min_separation
    users take part in a round. At 1 everybody takes part in every round, and no correlation is
    worth having: that is DP-FedAvg.
    """
    correlation: Literal["blt", "banded", "tree"] = "blt"
    """Of the noise: "blt": buffers; "banded": bands; "tree": binary trees as published."""

    def sampling_of(self, population: int) -> Sampling:
        """Groups that take turns, dealt by a public hash of the users' ids and the seed."""
        salt = hashlib.blake2b(f"turns {self.seed}".encode(), digest_size=16).hexdigest()
        return CyclicSampling(
            groups=self.min_separation,
            rounds=self.num_rounds,
            salt=salt,
            population=population,
        )

    def phase(
        self, population: int, *, asks: tuple[BoundedQuestion, ...], rounds: int | None = None
    ) -> Phase:
        """Rounds under the matrix for how often they ask a user; independent where coins decide."""
        phase = super().phase(population, asks=asks, rounds=rounds)
        if isinstance(phase.sampling, CyclicSampling):
            matrix = self.factorisation(phase.rounds, phase.sampling.min_separation)
            phase = replace(phase, factorisation=matrix)
        return phase

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


@final
class DPFTRL(PrivateSumStrategy):
    """Train a language model on the users' own text, with noise that later rounds take back.

    Unlike `DPFedAvg` with Poisson sampling it needs no secret about who takes part: its epsilon
    holds towards those who know. It asks for less noise in the model than independent noise
    wherever users come back only after several rounds; where everybody takes part in every round
    it is DP-FedAvg.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            DPFTRL(epsilon=7.0, num_users=1250, min_separation=10, num_nodes=50).start(grid)
        ```
    with `clientapp = "flower_privsyn.client_apps.training:app"`. The trained model is in
    `<run-dir>/models/final`.

    Formal guarantee:
        Unit: user; relation: `config.relation`. Users are dealt to `min_separation` groups by a
        hash of their ids, and round t asks group (t - 1) mod `min_separation`, once: so no user
        takes part more than ceil(`num_rounds` / `min_separation`) times or in rounds closer than
        `min_separation`. For such users all rounds together are one Gaussian mechanism, with the
        sensitivity of the correlation matrix. It is charged as a whole with the first round; a
        round that was begun is never asked again, also not by a resumed run. Epsilon towards the
        server's cohorts is the same as towards everybody else.

        The memory of the noise, `noise.npz` in the run directory while rounds are left, is as
        secret as the sums of the last rounds.

    Args:
        config: the settings, where they are not given as keywords.
        random: source of noise; only tests pass one.
        settings: by the names of the fields of `DPFTRLConfig`.

    References:
        Kairouz et al. 2021, Algorithm 1; McMahan, Xu, Zhang 2024.
    """

    config_class = DPFTRLConfig
    method_class = FederatedTraining
