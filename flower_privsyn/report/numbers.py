"""How figures and texts are written on a page."""

from __future__ import annotations

import math
import re

from rich.filesize import decimal

#: What is shown in place of a figure that there is not.
NOTHING = "\N{EN DASH}"

#: What HTML text cannot hold, and what UTF-8 cannot: controls, halves of surrogate pairs,
#: non-characters.
_UNWRITABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)

#: Marks that turn the direction of all text after them.
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")


def number(value: float | None) -> str:
    """A figure with four significant digits, thousands apart; a dash for none."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def whole(value: float | None) -> str:
    """A count; a dash for none."""
    return NOTHING if value is None else f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 round", "2 rounds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def epsilon_text(value: float | None) -> str:
    """An epsilon: infinity for None, no more digits than it has."""
    return "∞" if value is None or math.isinf(value) else f"{value:.4g}"


def bytes_text(value: float | None) -> str:
    """An amount of data with its unit, decimal: 1 kB is 1,000 bytes."""
    return NOTHING if value is None else decimal(round(value))


def writable(text: str) -> str:
    """A text that a page can hold: what it cannot becomes U+FFFD.

    Marks that turn the direction of text are dropped, so that a text cannot reorder the page.
    """
    return _DIRECTIONS.sub("", _UNWRITABLE.sub("\ufffd", text))
