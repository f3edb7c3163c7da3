"""`privsyn methods`: the catalogue, with what other distributions add to it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from flower_privsyn.cli.options import Json


def methods(
    method: Annotated[str, typer.Argument(metavar="METHOD", hidden=True)] = "",
    as_json: Json = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="print the settings of all methods, in Markdown")
    ] = False,
) -> int:
    """List the methods and their papers; with METHOD, the settings of that one."""
    from flower_privsyn.cli.settings_page import settings_of, settings_page
    from flower_privsyn.strategies.catalogue import entries, refusals

    if method:
        _list_settings(settings_of(method))
        return 0
    if settings:
        print(settings_page(), end="")
        return 0
    rows = [entry.to_dict() for entry in entries().values()]
    for sentence in refusals():
        sys.stderr.write(f"privsyn: {sentence}\n")
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        _list(rows)
    return 0


def _list(rows: Sequence[dict[str, str]]) -> None:
    """Print the methods, in two tables where the terminal is narrow."""
    from rich.console import Console

    headings = {"title": "method", "kind": "gives", "query": "users answer", "paper": "paper"}
    narrow = Console().width < 120
    for keys in (["title", "kind"], ["query", "paper"]) if narrow else (list(headings),):
        shown = ("strategy", *(headings[key] for key in keys))
        _show(shown, ([row[key] for key in ("name", *keys)] for row in rows))


def _list_settings(rows: Iterable[tuple[str, str, str, str]]) -> None:
    """Print settings, a line each, as wide as the terminal."""
    lines = [(f"{key} = {default}", words) for key, _, default, words in rows]
    longest = max(len(setting) for setting, _ in lines)
    most = max(20, shutil.get_terminal_size().columns - longest - 2)
    for setting, words in lines:
        print(f"{setting:<{longest}}  {textwrap.shorten(words, most, placeholder=' ...')}")
    print("What may stand there, and all that is said of it: privsyn methods --settings")


def _show(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # plain: the title of a method from outside may look like markup

    table = Table(pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
