"""`privsyn budget`: the noise of a privacy budget, or the other way round."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.cli.options import Json, option
from flower_privsyn.cli.output import number, show_json, show_table
from flower_privsyn.errors import ConfigError

if TYPE_CHECKING:
    from flower_privsyn.privacy import Sampling


def budget(
    delta: Annotated[float, typer.Option(help="in (0, 1), below 1/users")],
    rounds: Annotated[int, typer.Option(help="number of releases, >= 1")],
    epsilon: Annotated[float | None, typer.Option(help="privacy budget of all rounds, > 0")] = None,
    noise_multiplier: Annotated[
        float | None, option("Z", "noise std over the clip norm, > 0")
    ] = None,
    sampling_rate: Annotated[
        float | None,
        option(
            "Q", "every user takes part in a round with this probability (default: all take part)"
        ),
    ] = None,
    sample_size: Annotated[int | None, option("N", "exactly N of the users in every round")] = None,
    population: Annotated[
        int | None, option("N", "number of all users", "--population", "--users")
    ] = None,
    relation: Annotated[
        Literal["zero-out", "add-remove", "replace-one"],
        typer.Option(help="which collections of users are neighbours"),
    ] = "zero-out",
    max_nodes_per_user: Annotated[
        int, option("K", "one user may be on K nodes; Z is then over K times the clip norm")
    ] = 1,
    as_json: Json = False,
) -> int:
    """Find the noise of a privacy budget, or the epsilon of a noise."""
    from flower_privsyn.privacy import (
        NeighboringRelation,
        Release,
        both_epsilons,
        calibrate_noise_multiplier,
    )

    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError("Give either --epsilon or --noise-multiplier; the other is computed.")
    check_whole("rounds", rounds, ge=1)
    if noise_multiplier is not None:
        check_number("noise_multiplier", noise_multiplier, gt=0)
    drawn: Any = {
        "sampling": _sampling(sampling_rate, sample_size, population),
        "relation": NeighboringRelation(relation),
        "max_nodes_per_user": max_nodes_per_user,
    }
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = calibrate_noise_multiplier(
            epsilon=epsilon, delta=delta, rounds=rounds, **drawn
        )
    release = Release(noise_multiplier=noise_multiplier, **drawn)
    found = {
        "noise_multiplier": noise_multiplier,
        **both_epsilons({release: rounds}, delta=delta),
    }
    if population is not None and delta >= 1 / population:
        sys.stderr.write(
            f"privsyn: warning: delta {delta:g} is not below 1/users = "
            f"{1 / population:.3g}; it permits revealing one user outright\n"
        )
    if as_json:
        return show_json(found)
    title = f"{rounds} rounds, delta = {delta:g}, {relation}"
    show_table([(name, number(value)) for name, value in found.items()], title=title)
    return 0


def _sampling(rate: float | None, size: int | None, population: int | None) -> Sampling:
    from flower_privsyn.privacy import FixedSizeSampling, FullParticipation, PoissonSampling

    if rate is not None and size is not None:
        raise ConfigError("Give either --sampling-rate or --sample-size, not both.")
    if rate is not None:
        check_number("--sampling-rate", rate, gt=0, le=1)
        return PoissonSampling(rate, population=population)
    if size is None:
        return FullParticipation(population)
    if population is None:
        raise ConfigError("--sample-size needs --population, the number of all users.")
    return FixedSizeSampling(size, population=population)
