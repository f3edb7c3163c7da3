"""How figures and texts are written on a page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Fact = tuple[str, str | None]
"""A name and its value; left out where there is none."""

Row = tuple[str | None, ...]
"""Cells of a table; None is shown as a dash."""

#: What is shown in place of a figure that there is not.
NOTHING = "\N{EN DASH}"

#: Of a sample text: how many characters are shown.
_LENGTH = 420

_MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"

#: What HTML text cannot hold, and what UTF-8 cannot: controls, halves of surrogate pairs,
#: non-characters.
_UNWRITABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)

#: Marks that turn the direction of all text after them.
_DIRECTIONS = re.compile("[\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Look:
    """How a method looks wherever it is drawn.

    Attributes:
        colour: number of the colour in the style sheet, 0 to 7.
        mark: its shape, as the catalogue of methods names it.
    """

    colour: int
    mark: str


@dataclass(frozen=True)
class Sample:
    """Texts of one source.

    Attributes:
        title: the source.
        texts: at least one.
        note: a smaller line under the title.
        look: colour and mark of the method that wrote them; None for none.
    """

    title: str
    texts: Sequence[str]
    note: str
    look: Look | None = None


def number(value: float | None, digits: int = 4) -> str:
    """A figure with `digits` significant digits, thousands apart; a dash for none."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else f"{_MINUS}∞"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 11:
        mantissa, exponent = f"{value:.{max(0, digits - 2)}e}".split("e")
        mantissa = (mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa).replace(
            "-", _MINUS
        )
        return f"{mantissa} {_TIMES} 10{_superscript(int(exponent))}"
    if size >= digits - 1:
        return f"{value:,.0f}".replace("-", _MINUS)
    return f"{value:,.{digits - 1 - size}f}".replace("-", _MINUS)


def fixed(value: float | None, decimals: int) -> str:
    """A figure with a fixed number of decimals, so that a column of them lines up."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:z,.{decimals}f}".replace("-", _MINUS)  # z: no zero has a sign


def whole(value: float | None) -> str:
    """A count; a dash for none."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:,.0f}"


def counted(count: int, noun: str) -> str:
    """A number of things: "1 round", "2 rounds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def epsilon_text(value: float | None) -> str:
    """An epsilon: infinity for None, no more digits than it has."""
    if value is None or math.isinf(value):
        return "∞"
    return f"{value:.4g}" if value >= 1e-4 or value == 0 else number(value, 3)


def bytes_text(value: float | None) -> str:
    """An amount of data with its unit, decimal: 1 kB is 1,000 bytes."""
    if value is None:
        return NOTHING
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{_short(value / size)} {unit}"
    return f"{value:,.0f} B"


def seconds_text(value: float | None) -> str:
    """A time with its unit, of a size that can be read."""
    if value is None:
        return NOTHING
    if value < 10:
        return f"{value:.2g} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes = value / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def time_text(value: Any) -> str:
    """A time as written by `flower_privsyn.clock.now`, to the minute."""
    text = str(value)
    return f"{text[:10]} {text[11:16]}" if len(text) >= 16 and text[10] == "T" else text


def finite(value: Any) -> float | None:
    """A finite number from a file; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def setting_text(value: Any) -> str:
    """The value of a setting as a settings file has it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return '""' if value == "" else str(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object from a file; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def writable(text: str) -> str:
    """A text that a page can hold: what it cannot becomes U+FFFD.

    Marks that turn the direction of text are dropped, so that a text cannot reorder the page.
    """
    return _DIRECTIONS.sub("", _UNWRITABLE.sub("\ufffd", text))


def shortened(text: str, length: int = _LENGTH) -> str:
    """A text, cut at a word where it is longer than `length` characters."""
    if len(text) <= length:
        return text
    cut = text[:length]
    head, space, _ = cut.rpartition(" ")
    return f"{head if space and len(head) > length // 2 else cut} …"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _superscript(value: int) -> str:
    return str(value).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
