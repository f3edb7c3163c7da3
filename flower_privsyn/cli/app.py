"""The commands of `privsyn`, in the order of its help.

A command's file, and Typer with it, is imported when the command is called: `privsyn --help` reads
no more than the table below.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from flower_privsyn.environment import library_versions

COMMANDS: Final = {
    "new": ("new", "write an example to start from"),
    "check": ("check", "check a run before it is started; spends and writes nothing"),
    "run": ("run", "run a Flower app on this machine and follow it to its end"),
    "resume": ("run", "continue an interrupted run"),
    "inspect": ("inspect", "show what a run has done, spent and released, or rank text by it"),
    "evaluate": ("evaluate", "measure a run on held-out private text (not private)"),
    "methods": ("methods", "list the methods and their papers, or the settings of one"),
    "data": ("data", "say what a file of users holds, to its owner (not private)"),
    "compare": (
        "compare",
        "run every method on the same users and compare what it gives and costs (not private)",
    ),
    "advise": ("advise", "say which method was best at a measured size like yours"),
    "expand": ("expand", "make more of what a finished run released, at no privacy cost"),
    "report": ("report", "write a page about a run or a comparison, to be opened in a browser"),
    "budget": ("budget", "noise for a privacy budget, or the other way round"),
    "node": ("node", "say what this node allows, and see what its users have spent"),
}
"""A command's file in `flower_privsyn.cli`, which holds a function or a group of its name, and the
words of the help."""


class Privsyn(click.Group):
    """`privsyn` itself: knows its commands by name and words, and imports one to call it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name; None where there is none."""
        return _imported(cmd_name, *COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in COMMANDS.items()])


def _imported(name: str, file: str, words: str) -> click.Command:
    """A command or a group of them, as click takes it."""
    import typer.main

    from flower_privsyn.cli.options import PlainCommand, SeveralValues, plain_group

    found = getattr(import_module(f"flower_privsyn.cli.{file}"), name)
    if not isinstance(found, typer.Typer):
        function, found = found, plain_group()
        several = name in ("compare", "inspect")
        found.command(cls=SeveralValues if several else PlainCommand)(function)
    command = typer.main.get_command(found)
    command.name, command.short_help = name, words
    return command


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        found = library_versions("flower-privsyn", "flwr")
        print(f"privsyn {found['flower-privsyn']} (flwr {found['flwr']})")
        context.exit()


privsyn = Privsyn(
    "privsyn",
    help="Differentially private synthetic text with Flower.",
    # By name alone: for the order of the help, and for what a mistyped name is close to.
    commands={name: click.Command(name, short_help=words) for name, (_, words) in COMMANDS.items()},
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
