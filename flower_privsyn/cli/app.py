"""The commands of `privsyn`, in the order of its help."""

from __future__ import annotations

from typing import Annotated

import typer

from flower_privsyn.cli.budget import budget
from flower_privsyn.cli.compare import compare
from flower_privsyn.cli.embed import embed
from flower_privsyn.cli.evaluate import evaluate
from flower_privsyn.cli.inspect import inspect
from flower_privsyn.cli.methods import methods
from flower_privsyn.cli.migrate import migrate
from flower_privsyn.cli.node import node
from flower_privsyn.cli.options import PlainCommand, SeveralValues
from flower_privsyn.cli.report import report
from flower_privsyn.cli.run import resume, run
from flower_privsyn.cli.simulate import simulate
from flower_privsyn.cli.sketch import sketch
from flower_privsyn.environment import library_versions

app = typer.Typer(
    help="Differentially private synthetic text with Flower.",
    add_completion=False,
    suggest_commands=False,  # click does
    # Plain words: what a user typed may look like markup, and a pipe may read what is printed.
    rich_markup_mode=None,
    # A traceback with the values of variables would show private text.
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        found = library_versions("flower-privsyn", "flwr")
        print(f"privsyn {found['flower-privsyn']} (flwr {found['flwr']})")
        raise typer.Exit


@app.callback()
def _privsyn(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="print the versions and exit"
        ),
    ] = False,
) -> None:
    """Take the options that stand before the command."""


for _command, _words in (
    (run, "run a Flower app on this machine and follow it to its end"),
    (resume, "continue an interrupted run"),
    (inspect, "show what a run has done and what it has spent"),
    (migrate, "convert a run directory of version 0.1"),
    (evaluate, "measure a run on held-out private text (not private)"),
    (methods, "list the methods and their papers, or the settings of one"),
    (embed, "embed a node's text before a run, in several processes and with progress"),
    (simulate, "write a population of any size from public text, for tests of scale"),
    (
        compare,
        "run every method on the same users and compare what it gives and costs (not private)",
    ),
    (report, "write a page about a run or a comparison, to be opened in a browser"),
    (budget, "noise for a privacy budget, or the other way round"),
):
    _class = SeveralValues if _command is compare else PlainCommand
    app.command(cls=_class, short_help=_words)(_command)
app.add_typer(
    node, name="node", short_help="say what this node allows, and see what its users have spent"
)
app.add_typer(sketch, name="sketch", short_help="show what the release of a joint sketch says")
