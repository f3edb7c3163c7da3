"""The commands of `privsyn`, in the order of its help.

Their files import what they work with inside their functions, so that the help loads neither Flower
nor a model library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer.main import get_command

from flower_privsyn.cli.advise import advise
from flower_privsyn.cli.budget import budget
from flower_privsyn.cli.check import check
from flower_privsyn.cli.compare import compare
from flower_privsyn.cli.data import data
from flower_privsyn.cli.evaluate import evaluate
from flower_privsyn.cli.expand import expand
from flower_privsyn.cli.inspect import inspect
from flower_privsyn.cli.methods import methods
from flower_privsyn.cli.new import new
from flower_privsyn.cli.node import node
from flower_privsyn.cli.options import PlainCommand, SeveralValues, plain_group
from flower_privsyn.cli.report import report
from flower_privsyn.cli.run import resume, run
from flower_privsyn.environment import library_versions


def _version(asked: bool) -> None:
    if asked:
        found = library_versions("flower-privsyn", "flwr")
        print(f"privsyn {found['flower-privsyn']} (flwr {found['flwr']})")
        raise typer.Exit


_group = plain_group("Differentially private synthetic text with Flower.")


@_group.callback()
def _privsyn(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="print the versions and exit"
        ),
    ] = False,
) -> None:
    pass


_COMMANDS: tuple[Callable[..., int], ...] = (
    *(new, check, run, resume, inspect, evaluate, methods),
    *(data, compare, advise, expand, report, budget),
)
for _one in _COMMANDS:
    _group.command(cls=SeveralValues if _one in (compare, inspect) else PlainCommand)(_one)
_group.add_typer(node, name="node")

privsyn = get_command(_group)
"""The command `privsyn`."""
