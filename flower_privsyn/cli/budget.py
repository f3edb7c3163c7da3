"""`privsyn budget`: the noise of a privacy budget, or the other way round."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flower_privsyn.checks import check_number
from flower_privsyn.cli.options import Json, option
from flower_privsyn.cli.output import number
from flower_privsyn.errors import ConfigError, MissingExtraError

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
    """Find the noise multiplier that keeps a number of rounds within (epsilon, delta).

    Or find the epsilon of a noise multiplier; either by two accountants.
    """
    try:
        from flower_privsyn.privacy import NeighboringRelation
        from flower_privsyn.privacy.budget import budget_report
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"The privacy accountant needs {error.name}; reinstall flower-privsyn."
        ) from error

    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError("Give either --epsilon or --noise-multiplier; the other is computed.")
    found = budget_report(
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        rounds=rounds,
        sampling=_sampling(sampling_rate, sample_size, population),
        relation=NeighboringRelation(relation),
        max_nodes_per_user=max_nodes_per_user,
    )
    if population is not None and delta >= 1 / population:
        sys.stderr.write(
            f"privsyn: warning: delta {delta:g} is not below 1/users = "
            f"{1 / population:.3g}; it permits revealing one user outright\n"
        )
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show(found, f"{rounds} rounds, delta = {delta:g}, {relation}")
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


def _show(found: Mapping[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("")
    table.add_column("PLD", justify="right")
    table.add_column("RDP", justify="right")

    def row(name: str, values: Mapping[str, Any]) -> None:
        table.add_row(name, number(values.get("pld")), number(values.get("rdp")))

    known = found["epsilon_known_cohorts"]
    row("noise multiplier", found["noise_multiplier"])
    row("epsilon_release", found["epsilon_release"])
    row("epsilon_known_cohorts, in every round", known)
    for count, values in known.get("by_participations", {}).items():
        row(f"epsilon_known_cohorts, in {count} round{'s' if count != '1' else ''}", values)
    Console().print(table)
