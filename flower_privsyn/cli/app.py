"""The commands of `privsyn`, in the order of its help.

A command's file is imported when the command is asked for, and imports what it works with inside
its functions: the help of all of them loads neither Typer, Flower nor a model library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from flower_privsyn.environment import library_versions

#: The commands, each with the first sentence of its help.
_COMMANDS: Final = {
    "new": "Write an example, or an app with a method, into a folder.",
    "check": "Check a run before it is started; nothing is spent.",
    "run": "Run a Flower app on this machine and follow it to its end.",
    "resume": "Continue an interrupted run after its last finished round.",
    "inspect": "Show what a run has done and released, or rank text by it.",
    "evaluate": "Measure a run on held-out private text (not private).",
    "methods": "List the methods and their papers, or the settings of METHOD.",
    "data": "Count what a file of users holds, for its owner (not private).",
    "compare": "Run methods on the same users and compare (not private).",
    "advise": "Say which method was best at a measured size like yours.",
    "expand": "Make more of what a finished run released, at no privacy cost.",
    "report": "Write the page of a run, to be opened in a browser.",
    "budget": "Find the noise of a privacy budget, or the epsilon of a noise.",
    "node": "For the owner of a node: its policy, key and account.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from flower_privsyn.cli.options import plain_command

        file = "run" if cmd_name == "resume" else cmd_name
        return plain_command(getattr(import_module(f"flower_privsyn.cli.{file}"), cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        found = library_versions("flower-privsyn", "flwr")
        print(f"privsyn {found['flower-privsyn']} (flwr {found['flwr']})")
        context.exit()


privsyn = _Commands(
    "privsyn",
    dict.fromkeys(_COMMANDS, click.Command(None)),  # their names, for what is misspelt
    help="Differentially private synthetic text with Flower.",
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
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The command `privsyn`."""
