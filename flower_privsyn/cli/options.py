"""Options and arguments that several commands share: name, type and words, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from typer.core import TyperCommand
from typer.main import get_command


def option(metavar: str, words: str | None = None, *names: str, show_default: bool = True) -> Any:
    """An option that takes a value.

    Args:
        metavar: what stands for the value in the help.
        words: what the help says of it; the default, where there is one, is added.
        names: of the option; by default that of the parameter.
        show_default: whether the default is added.
    """
    return typer.Option(*names, metavar=metavar, help=words, show_default=show_default)


def plain_group(words: str) -> typer.Typer:
    """A group of commands that prints plain words.

    Args:
        words: its help.
    """
    return typer.Typer(
        help=words,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        suggest_commands=False,  # click does
        # What a user typed may look like markup, and a pipe may read what is printed.
        rich_markup_mode=None,
    )


RunDir = Annotated[str, typer.Argument(metavar="DIR", hidden=True)]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Config = Annotated[str | None, option("NAME", "settings from the app's conf/NAME.toml; --set wins")]
Settings = Annotated[
    list[str] | None,
    option("KEY=VALUE", "one setting; may be given several times", "--set"),
]
NewRunDir = Annotated[
    str | None, option("DIR", "where to write the run (default: runs/<app>-<time>)")
]
Evaluate = Annotated[
    str | None,
    option(
        "FILE",
        "the run's own data: measure the finished run on the users it held out, as "
        "`privsyn evaluate DIR --users FILE` does",
    ),
]


def given(settings: Sequence[str] | None, taken: Mapping[str, Any], command: str) -> dict[str, Any]:
    """What `--set` says, by the keys of a run.

    Args:
        settings: `key=value` texts.
        taken: keys that the command takes, with what stands there by default.
        command: that takes them.

    Raises:
        ConfigError: it takes no such key.
    """
    from flower_privsyn.host.app import App, read_settings

    return read_settings(App(path=Path(), name=command, defaults=taken), settings or ())


class PlainCommand(TyperCommand):
    """A command whose help is plain text, with its arguments explained in its description.

    Typer 0.20 escapes brackets for Rich also where Rich prints nothing, and has no words for an
    argument under click 8.5; arguments are hidden from its list for that reason.
    """

    def get_help(self, ctx: click.Context) -> str:
        """The help as it is to be printed."""
        return super().get_help(ctx).replace("\\[", "[")


class SeveralValues(PlainCommand):
    """A command whose repeatable options take several values at once.

    `--epsilon 1 4` means `--epsilon 1 --epsilon 4`. What arguments there are stand before them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before every value after its first, and parse what that gives."""
        repeatable = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.multiple
            for name in parameter.opts
        }
        words: list[str] = []
        option, values = "", 0
        for word in args:
            if word.startswith("-"):
                option, values = word, 0
            else:
                if values and option in repeatable:
                    words.append(option)
                values += 1
            words.append(word)
        return super().parse_args(ctx, words)


def plain_command(made: Callable[..., int] | typer.Typer) -> click.Command:
    """A command of `privsyn`.

    Args:
        made: the function that does it, or a group of commands.
    """
    if isinstance(made, typer.Typer):
        return get_command(made)
    alone = plain_group("")
    alone.command(cls=SeveralValues if made.__name__ in ("compare", "inspect") else PlainCommand)(
        made
    )
    return get_command(alone)
