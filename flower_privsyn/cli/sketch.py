"""`privsyn sketch`: what a released joint sketch says."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_privsyn.cli.options import (
    Json,
    PlainCommand,
    RunDir,
    option,
    plain_group,
)
from flower_privsyn.cli.output import REFUSED
from flower_privsyn.errors import ConfigError, PrivsynError

if TYPE_CHECKING:
    from rich.table import Table

    from flower_privsyn.runs import RunDirectory

sketch = plain_group("What the release of a joint sketch says of its users' text.")


@sketch.command(
    cls=PlainCommand, short_help="make text and student of a finished run's release once more"
)
def again(
    run_dir: RunDir,
    output: Annotated[str, typer.Argument(metavar="OUTPUT", hidden=True)],
    settings: Annotated[
        list[str] | None,
        option("KEY=VALUE", "one setting; may be given several times", "--set"),
    ] = None,
) -> int:
    """Make all of a finished joint sketch's result anew, with other settings, from its release.

    DIR is the run directory, OUTPUT the new one, with the same ledger: nobody is asked and nothing
    is spent. What may be set is how public text is chosen, how student and teacher learn, and what
    is written; all else is the run's.
    """
    from flower_privsyn.cli.run import resume
    from flower_privsyn.files import expanded
    from flower_privsyn.private_path.again import copy_released
    from flower_privsyn.runs import RunDirectory

    copied = copy_released(RunDirectory.open(run_dir), expanded(output).absolute())
    refused = False  # not of one that was interrupted, which can be resumed
    try:
        status = resume(str(copied.path), settings)
        refused = status == REFUSED
    except PrivsynError:
        refused = True
        raise
    finally:
        if refused and not (copied.path / "models").exists():  # nothing has begun
            shutil.rmtree(copied.path)
            shutil.rmtree(copied.owner.path)
    return status


@sketch.command(
    cls=PlainCommand, short_help="show what they write more of: topics, tokens, bigrams"
)
def show(
    run_dir: RunDir,
    top: Annotated[int, option("N", "items of each kind, at each end")] = 20,
    as_json: Json = False,
) -> int:
    """Show what the users of a run write more and less often than public text does.

    DIR is the run directory. An item's ratio is the exponential of the posterior mean of its
    logarithm; items are in the order of what is sure: the ratio less two standard errors. Trust is
    how far the run went by what the release says, 1 where it tells enough. All of it is made from
    the release, and costs nothing beyond its epsilon; a run without noise has none, and what it
    shows is private.
    """
    from flower_privsyn.checks import check_whole
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.runs.sketch_file import SKETCH_FILE, telling_items, trust_in

    check_whole("--top", top, ge=1)
    run = RunDirectory.open(run_dir)
    file = run.path / SKETCH_FILE
    if not file.is_file():
        raise ConfigError(
            f"{run.path} holds no {SKETCH_FILE}: it is no run of joint-sketch, or it has not read "
            "its release yet"
        )
    items, trust, epsilon = telling_items(file, most=top), trust_in(file), _epsilon(run)
    if as_json:
        shown = {"epsilon": epsilon, "trust": trust, **items}
        print(json.dumps(shown, ensure_ascii=False, indent=2))
    else:
        told = [f"epsilon {'none: no privacy' if epsilon is None else f'{epsilon:.4g}'}"]
        if trust is not None:
            told.append(f"trust {trust:.2f}")
        _print(items, f"What the release of {run.path.name} says ({', '.join(told)})")
    return 0


def _epsilon(run: RunDirectory) -> float | None:
    """What the run's releases cost together; None without noise."""
    from flower_privsyn.privacy.ledger_chain import stated_costs

    epsilon: float | None = stated_costs(run.ledger_lines()).get("epsilon_release")
    return epsilon


def _print(items: dict[str, dict[str, list[dict[str, Any]]]], title: str) -> None:
    from rich.console import Console

    console = Console()
    console.print(title, markup=False, highlight=False)
    for kind, ends in items.items():
        for end, words in (("more", "more often than"), ("less", "less often than")):
            if ends[end]:
                console.print(
                    _table(ends[end], title=f"{kind}s that users write {words} public text")
                )


def _table(rows: list[dict[str, Any]], *, title: str) -> Table:
    from rich.table import Table
    from rich.text import Text  # plain: a token may look like markup

    table = Table(title=title, title_justify="left", pad_edge=False)
    table.add_column("text")
    for heading in ("times as often", "from", "to"):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = (f"{row[key]:.2f}" for key in ("ratio", "low", "high"))
        table.add_row(Text(json.dumps(row["text"], ensure_ascii=False)), *figures)
    return table
