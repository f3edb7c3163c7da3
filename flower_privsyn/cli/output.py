"""Exit statuses, and how the commands say what they found."""

from __future__ import annotations

import sys
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
