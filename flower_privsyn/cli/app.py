"""The commands of `privsyn`, in the order of its help.

Their files import what they work with only when they are called, so that `privsyn --help` loads
neither Flower nor a model library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

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

COMMANDS: Final[dict[Callable[..., int], str]] = {
    new: "write an example to start from",
    check: "check a run before it is started; spends and writes nothing",
    run: "run a Flower app on this machine and follow it to its end",
    resume: "continue an interrupted run",
    inspect: "show what a run has done, spent and released, or rank text by it",
    evaluate: "measure a run on held-out private text (not private)",
    methods: "list the methods and their papers, or the settings of one",
    data: "count what a file of users holds, for its owner (not private)",
    compare: (
        "run every method on the same users and compare what it gives and costs (not private)"
    ),
    advise: "say which method was best at a measured size like yours",
    expand: "make more of what a finished run released, at no privacy cost",
    report: "write a page about a run or a comparison, to be opened in a browser",
    budget: "noise for a privacy budget, or the other way round",
}
"""A command's function, whose name it has, and the words of the help."""

_privsyn = plain_group("Differentially private synthetic text with Flower.")
for _function, _words in COMMANDS.items():
    _class = SeveralValues if _function in (compare, inspect) else PlainCommand
    _privsyn.command(cls=_class, short_help=_words)(_function)
_privsyn.add_typer(
    node, name="node", short_help="say what this node allows, and see what its users have spent"
)


def _version(asked: bool) -> None:
    if asked:
        found = library_versions("flower-privsyn", "flwr")
        print(f"privsyn {found['flower-privsyn']} (flwr {found['flwr']})")
        raise typer.Exit


@_privsyn.callback()
def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="print the versions and exit"
        ),
    ] = False,
) -> None:
    del version


privsyn = typer.main.get_command(_privsyn)
