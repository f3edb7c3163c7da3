"""The commands of `privsyn`, in the order of its help.

A command's file, and Typer that reads its options from its signature, are imported when it is
called. These files import what they work with inside their functions, so that the help of a command
loads neither Flower nor a model library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from flower_privsyn.environment import library_versions

if TYPE_CHECKING:
    import typer

COMMANDS: Final = {
    "new": "write an example to start from",
    "check": "check a run before it is started; spends and writes nothing",
    "run": "run a Flower app on this machine and follow it to its end",
    "resume": "continue an interrupted run",
    "inspect": "show what a run has done, spent and released, or rank text by it",
    "evaluate": "measure a run on held-out private text (not private)",
    "methods": "list the methods and their papers, or the settings of one",
    "data": "count what a file of users holds, for its owner (not private)",
    "compare": (
        "run every method on the same users and compare what it gives and costs (not private)"
    ),
    "advise": "say which method was best at a measured size like yours",
    "expand": "make more of what a finished run released, at no privacy cost",
    "report": "write the page of a run, to be opened in a browser",
    "budget": "noise for a privacy budget, or the other way round",
    "node": "say what this node allows, and see what its users have spent",
}
"""A command's name, which that of its function and file is, and the words of the help."""


class _Commands(click.Group):
    """The commands, each read from its file when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None where there is none."""
        if cmd_name not in self.commands and cmd_name in COMMANDS:
            self.add_command(_read(cmd_name), cmd_name)
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and words, without reading a file."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])


def _read(name: str) -> click.Command:
    """A command from its file."""
    from typer.main import get_command

    from flower_privsyn.cli.options import PlainCommand, SeveralValues, plain_group

    home = import_module(f"flower_privsyn.cli.{'run' if name == 'resume' else name}")
    if name == "node":
        group: typer.Typer = home.node
        return get_command(group)
    alone = plain_group()
    kind = SeveralValues if name in ("compare", "inspect") else PlainCommand
    alone.command(name, cls=kind)(getattr(home, name))
    return get_command(alone)


def _version(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        found = library_versions("flower-privsyn", "flwr")
        print(f"privsyn {found['flower-privsyn']} (flwr {found['flwr']})")
        ctx.exit()


privsyn = _Commands(
    help="Differentially private synthetic text with Flower.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_version,
            help="print the versions and exit",
        )
    ],
)
"""The command `privsyn`."""
