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
    theta_t from the noisy total of all rounds                  `FederatedTraining.following`, which
                                                                adds up noisy rounds: the same sum
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, final

from flower_privsyn.checks import check_choice
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import Phase, RandomSource
from flower_privsyn.run.settings import Preset
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._training import (
    UNCAPPED,
    CorrelatedTrainingConfig,
    FederatedTraining,
    wang_federation,
)

#: POPri's noise multipliers for DP-FTRL by (users, users per round) and epsilon, table 3.
POPRI_TREES: Final[Mapping[tuple[int, int], Mapping[str, float]]] = {
    (1_000, 1_000): {"1": 19.5, "7": 3.35},
    (2_000, 1_000): {"1": 28.0, "7": 4.8},
    (4_000, 1_000): {"1": 34.0, "7": 5.8},
    (10_000, 500): {"1": 43.0, "7": 7.5},
    (10_000, 1_000): {"1": 39.0, "7": 6.7},
    (10_000, 2_000): {"1": 34.0, "7": 5.8},
    (10_000, 2_500): {"1": 34.0, "7": 5.8},
    (10_000, 5_000): {"1": 28.0, "7": 4.8},
    (10_000, 7_500): {"1": 19.5, "7": 3.35},
    (10_000, 10_000): {"1": 19.5, "7": 3.35},
    (17_000, 1_000): {"1": 44.0, "7": 7.5},
    (72_000, 1_000): {"1": 52.0, "7": 8.9},
    (72_000, 72_000): {"1": 19.5, "7": 3.35},
    (133_000, 1_000): {"1": 55.0, "7": 9.5},
    (133_000, 133_000): {"1": 19.5, "7": 3.35},
}


@dataclass(frozen=True, kw_only=True)
class DPFTRLConfig(CorrelatedTrainingConfig):
    """Settings of `DPFTRL`.

    References:
        Kairouz et al. 2021, Algorithm 1; McMahan, Xu, Zhang 2024; Choquette-Choo et al. 2023.
    """

    @classmethod
    def popri(
        cls,
        *,
        users: int = 10_000,
        users_per_round: int = 1_000,
        epsilon: Literal["1", "7"] = "7",
        twenty: Literal["epochs", "rounds"] = "epochs",
        **overrides: Any,
    ) -> Self:
        """POPri's DP-FTRL baseline: trees with a restart in every pass over the users.

        The paper states 20 rounds; its noise multipliers reach its epsilons for 20 epochs. For 20
        rounds they are far more noise than the epsilon asks for.

        Args:
            users: N of table 3.
            users_per_round: L of table 3.
            epsilon: of table 3.
            twenty: what there are twenty of: "epochs" as in the table's accounting, "rounds" as in
                the text.
            overrides: further settings.

        Raises:
            ConfigError: table 3 has no such row.
        """
        row = POPRI_TREES.get((users, users_per_round), {}).get(epsilon)
        if row is None:
            listed = "; ".join(f"{n} and {per}" for n, per in POPRI_TREES)
            raise ConfigError(
                f"users, users_per_round and epsilon must be a row of POPri's table 3 ({listed}; "
                f'epsilon "1" or "7"), got {users}, {users_per_round} and {epsilon!r}'
            )
        check_choice("twenty", twenty, ("epochs", "rounds"))
        passes = users // users_per_round
        preset: dict[str, Any] = {
            "noise_multiplier": row,
            "delta": 3e-6,
            "num_rounds": 20 * passes if twenty == "epochs" else 20,
            "min_separation": passes,
            "correlation": "tree",
            "accountant": "rdp",
            "local_batch_size": 2,
            **UNCAPPED,
            "local_learning_rate": 0.03,
            "server_learning_rate": 1.0,
            **overrides,
        }
        return cls(**preset)

    @classmethod
    def public_llm(cls, *, epsilon: Literal["1.77", "18.71"] = "1.77", **overrides: Any) -> Self:
        """DP-FTRL of "Can Public Large Language Models Help Private Cross-device FL?".

        One tree over 1,600 rounds of 100 of 342,000 users, each at most once, who pass over at most
        256 samples of 20 tokens in batches of 16 (Wang et al. 2023). Rates and clip norm are not
        printed and are this package's.

        Args:
            epsilon: as printed.
            overrides: further settings.

        Raises:
            ConfigError: no such epsilon is printed.
        """
        return cls(**{**wang_federation(epsilon), **overrides})


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
    popri = Preset(DPFTRLConfig.popri)
    public_llm = Preset(DPFTRLConfig.public_llm)

    def __init__(
        self,
        config: DPFTRLConfig | None = None,
        *,
        random: RandomSource | None = None,
        **settings: Any,
    ) -> None:
        config = DPFTRLConfig.given(config, settings, strategy="DPFTRL")
        super().__init__(config, CorrelatedTraining(config), random=random)


class CorrelatedTraining(FederatedTraining):
    """The server's half of `DPFTRL`: average updates under noise that later rounds take back.

    Args:
        config: the settings.
    """

    config: CorrelatedTrainingConfig

    def __init__(self, config: CorrelatedTrainingConfig) -> None:
        super().__init__(config)

    def phases(self, population: int) -> tuple[Phase, ...]:
        """All rounds under the matrix of the settings."""
        return (self.config.correlated(self.config.phase(population, asks=self.queries)),)
