"""A release before the rounds that train: two phases that share a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import FullParticipation, Phase
from flower_privsyn.strategies._training import FederatedTraining
from flower_privsyn.strategies.dp_ftrl import DPFTRLConfig

#: The round that asks it; all others train.
FIRST_ROUND = 1


@dataclass(frozen=True, kw_only=True)
class FirstReleaseConfig(DPFTRLConfig):
    """Settings of methods whose first round asks everybody for something else than updates."""

    num_rounds: Annotated[int, Ge(2)] = 21
    """Rounds of the run: one for the first release, and all others train."""
    noise_multiplier: float | None = None
    """Of the rounds that train; of correlated noise the fresh part of a round's. It needs
    `first_noise_multiplier` beside it.
    """
    first_share: Annotated[float, Gt(0), Lt(1)] = 0.1
    """f, the part of the budget that the first release has: its noise is that of a single release
    of the whole budget over the root of f, and all rounds that train together have that over the
    root of 1 - f.
    """
    first_noise_multiplier: Annotated[float | None, Ge(0), Le(1e6)] = None
    """Standard deviation of the first release's noise over the norm of a user's answer, in place of
    `first_share`.
    """


class ReleaseThenTraining(FederatedTraining):
    """Training whose first round asks everybody for something else.

    Attributes:
        first_phase: what the first round's phase is called.
    """

    config: FirstReleaseConfig
    first_phase: ClassVar[str]

    def phases(self, population: int) -> tuple[Phase, ...]:
        """A phase of one round for the first release, and one of those that train.

        The first one's noise multiplier is stated, or follows from its share of the budget. A
        single Gaussian release that spends the whole budget has noise multiplier z. One of
        z / sqrt(s) takes the part s of what a budget is made of, for Gaussian releases compose by
        the sum of 1 / z^2: what is left for training is that of z / sqrt(1 - s).

        Formal guarantee:
            Everybody may be asked for the first release, so a user pays for it and for the rounds
            that train: both phases compose. Cohorts of the second are counted from the first round
            of the run, as `CyclicSampling` does.

        Args:
            population: users on the roster, or the fewest there must be.

        Raises:
            ConfigError: no noise keeps the budget, or there is none to share.
        """
        config, (first, *updates) = self.config, self.queries
        everybody = Phase(
            name=self.first_phase,
            rounds=1,
            sampling=FullParticipation(population=population),
            asks=(first,),
            noise_multiplier=config.first_noise_multiplier,
        )
        if everybody.noise_multiplier is None:
            if config.epsilon is None:
                raise ConfigError(
                    f"noise-multiplier = {config.noise_multiplier:g} needs first-noise-multiplier "
                    "beside it: without an epsilon there is nothing to share"
                )
            alone = config.plan((everybody,)).calibrated_multiplier(config.epsilon)
            shared = alone / math.sqrt(config.first_share)
            everybody = replace(everybody, noise_multiplier=shared)
        training = config.phase(population, asks=tuple(updates), rounds=config.num_rounds - 1)
        return everybody, replace(training, name="training")
