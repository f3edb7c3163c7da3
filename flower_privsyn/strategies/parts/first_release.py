"""A first release that asks something else, before the rounds that train: its noise, its phase.

For methods of two phases in one budget: everybody is asked once, and what the nodes train on, or
from, is made of the answer.
"""

from __future__ import annotations

import math
from dataclasses import replace

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    FullParticipation,
    NeighboringRelation,
    Phase,
    Plan,
)
from flower_privsyn.private_path.settings import PrivateSumConfig
from flower_privsyn.queries import Query
from flower_privsyn.strategies.parts.correlated_training import CorrelatedTrainingConfig

#: The round that asks it; all others train.
FIRST_ROUND = 1


def check_stated_noise(
    config: PrivateSumConfig, *, key: str, stated: float | None, example: str = ""
) -> None:
    """Refuse rounds that state their noise beside a first release that has a share of no budget.

    Args:
        config: the settings.
        key: of the first release's noise multiplier.
        stated: what it is set to.
        example: words behind the key.
    """
    if config.noise_multiplier is not None and stated is None:
        raise ConfigError(
            f"noise-multiplier = {config.noise_multiplier:g} needs {key} beside it{example}: "
            "without an epsilon there is nothing to share"
        )


def multiplier_of_share(config: PrivateSumConfig, query: Query, *, share: float) -> float:
    """The noise multiplier of a first release that has a share of the budget.

    A single Gaussian release that spends the whole budget has noise multiplier z. One of
    z / sqrt(s) takes the part s of what a budget is made of, for Gaussian releases compose by
    the sum of 1 / z^2: what is left for training is that of z / sqrt(1 - s).

    Args:
        config: the settings, with the budget.
        query: what is asked of everybody.
        share: s, in (0, 1).

    Raises:
        ConfigError: no noise keeps the budget.
    """
    alone = Plan(
        phases=(
            Phase(name="the whole budget", rounds=1, sampling=FullParticipation(), asks=(query,)),
        ),
        delta=config.delta,
        relation=NeighboringRelation(config.relation),
        accountant=config.accountant,
        max_nodes_per_user=config.max_nodes_per_user,
    )
    return alone.calibrated_multiplier(config.epsilon or 0.0) / math.sqrt(share)


def first_then_training(
    config: CorrelatedTrainingConfig,
    population: int,
    *,
    name: str,
    query: Query,
    multiplier: float,
    updates: Query,
) -> tuple[Phase, Phase]:
    """A phase of one round for the first release, and one of those that train.

    Formal guarantee:
        Everybody may be asked for the first release, so a user pays for it and for the rounds that
        train: both phases compose. Cohorts of the second are counted from the first round of the
        run, as `CyclicSampling` does.

    Args:
        config: the settings; their `num_rounds` counts both.
        population: users on the roster, or the fewest there must be.
        name: of the first phase.
        query: what it asks.
        multiplier: its noise.
        updates: what the rounds ask that train.
    """
    training = replace(
        config.phase(population, asks=(updates,)), name="training", rounds=config.num_rounds - 1
    )
    if config.sampling == "cyclic":
        training = config.correlated(training)
    first = Phase(
        name=name,
        rounds=1,
        sampling=FullParticipation(population=population),
        asks=(query,),
        noise_multiplier=multiplier,
    )
    return first, training
