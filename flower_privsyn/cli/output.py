"""Exit statuses, and how the commands say what they found."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

FAILED: Final = 1
"""Exit status: something failed unexpectedly."""

REFUSED: Final = 2
"""Exit status: what was asked for cannot be done."""

INTERRUPTED: Final = 130
"""Exit status: a signal or Ctrl-C ended the command."""


def complain(sentence: str, status: int) -> int:
    """Say on the standard error why a command ends with this exit status, and return it."""
    sys.stderr.write(f"privsyn: {sentence}\n")
    return status


def number(value: float | None, *, none: str = "none") -> str:
    """A figure with four digits; `none` where there is none."""
    return none if value is None else f"{value:.4g}"


def plain_line(text: str, *, most: int = 400) -> str:
    """A text that somebody else wrote as one line for a terminal, without control characters.

    Args:
        text: such as a generator's.
        most: characters that are shown.
    """
    line = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    return line if len(line) <= most else f"{line[:most]} ..."


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and what is known under each, below one another.

    Args:
        facts: a text that somebody else wrote may look like markup, and is printed as it is.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(str(value)))
    Console().print(table)


def show_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None
) -> None:
    """Print rows under their headings: a name, and figures.

    Args:
        headings: of all columns.
        rows: as `show_facts` prints them.
        title: above the table; None for none.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    if title is not None:
        print(title)
    Console().print(table)
