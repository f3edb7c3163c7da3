"""DP-FedAvg: federated averaging under user-level differential privacy.

Papers:
    McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models"
    (ICLR 2018), Algorithm 1 (DP-FedAvg with fixed-size federated rounds; flat clipping).
    Andrew, Thakkar, McMahan, Ramaswamy: "Differentially Private Learning with Adaptive Clipping"
    (NeurIPS 2021), Algorithm 1.

Algorithm 1 of McMahan et al., step by step:
    sample users, each with probability q                       `PrivateSumConfig.sampling`
    UserUpdateFedAvg: local gradient descent from x             `training/local.py`
    the whole update is clipped to norm C (FlatClip)            `ModelDelta`, `Query.contribution`
    sum with equal weights over q W, never over who answered    `ModelDelta.mean_update`
    Gaussian noise z C                                          `PrivateSumStrategy`
    the server's step                                           `FederatedTraining.step`
Andrew et al.: the bit beside the update, and C for the next round   `next_clip_norm`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, final

from annotated_types import Ge, Le

from flower_privsyn.checks import IN_PYTHON
from flower_privsyn.queries import ModelDelta
from flower_privsyn.queries.model_delta import LARGEST_BIT_SHARE, LEAST_BIT_SHARE, next_clip_norm
from flower_privsyn.run.method import ReleasedSum
from flower_privsyn.run.strategy import PrivateSumStrategy
from flower_privsyn.strategies._training import FederatedTraining, FederatedTrainingConfig


@dataclass(frozen=True, kw_only=True)
class DPFedAvgConfig(FederatedTrainingConfig):
    """Settings of `DPFedAvg`.

    References:
        Andrew et al. 2021, section 3: quantile 0.5, learning rate 0.2, first clip norm 0.1.
    """

    adaptive_clipping: Annotated[bool, IN_PYTHON] = False
    """Let the clip norm follow a quantile of the updates' norms; `clip_norm` is the first one."""
    clip_quantile: Annotated[float, Ge(0), Le(1), IN_PYTHON] = 0.5
    """The fraction of users whose update shall be within the clip norm."""
    clip_learning_rate: Annotated[float, Ge(0), Le(10), IN_PYTHON] = 0.2
    """How fast the clip norm moves; 0.2 in the paper."""
    clip_bit_share: Annotated[float, Ge(LEAST_BIT_SHARE), Le(LARGEST_BIT_SHARE), IN_PYTHON] = 0.2
    """Part of the bound on a user that the bit takes. At 0.2 updates carry 2 % more noise, and the
    fraction has noise 2.5 z / users at the noise multiplier z; the paper's users / 20 is a share of
    10 z / users.
    """

    def question(self, clip_norm: float) -> ModelDelta:
        """The query these settings ask at a clip norm."""
        bit_share = self.clip_bit_share if self.adaptive_clipping else 0.0
        return replace(super().question(clip_norm), bit_share=bit_share)

    def next_clip_norm(self, query: ModelDelta, release: ReleasedSum) -> dict[str, float]:
        """The geometric step towards the quantile, or no step without adaptive clipping.

        Never beyond what the grid holds for everybody on the roster: a round that cannot be asked
        would end a run that has been paid for.
        """
        if not query.bit_share:
            return super().next_clip_norm(query, release)
        within = query.fraction_within(release.values, release.expected_users)
        following = next_clip_norm(
            query.clip_to,
            within,
            quantile=self.clip_quantile,
            learning_rate=self.clip_learning_rate,
        )
        largest = release.largest_clip_norm * math.sqrt(1.0 - query.bit_share**2)
        return {"next_clip_norm": min(following, largest), "fraction_within": within}


@final
class DPFedAvg(PrivateSumStrategy):
    """Train a language model on the users' own text by averaging clipped, noised updates.

    Example:
        ```python
        @app.main()
        def main(grid, context):
            DPFedAvg(model="privsyn-tiny", epsilon=7.0, num_users=1250, num_nodes=50).start(grid)
        ```
    with `clientapp = "flower_privsyn.client_apps.training:app"`. The trained model is in
    `<run-dir>/models/final`.

    Formal guarantee:
        Unit: user; relation: `config.relation`; `num_rounds` Gaussian releases of a sum of updates
        clipped to the clip norm of their round, composed with the sampling in use. With adaptive
        clipping every release holds the sum of the updates and the sum of the bits under one
        bound (`ModelDelta`), so that the bits cost nothing beside the noise multiplier that is
        accounted; the clip norm of the next round is post-processing.

    Args:
        config: the settings, where they are not given as keywords.
        random: source of noise and coins; only tests pass one.
        settings: by the names of the fields of `DPFedAvgConfig`.

    References:
        McMahan et al. 2018, Algorithm 1; Andrew et al. 2021, Algorithm 1.
    """

    config_class = DPFedAvgConfig
    method_class = FederatedTraining
