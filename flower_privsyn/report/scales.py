"""From figures to places on a chart: axes with round ticks, and how figures are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flower_privsyn.errors import ConfigError

#: What is shown in place of a figure that there is not.
NOTHING = "\N{EN DASH}"

_MINUS, _TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"

#: A logarithmic axis that spans less than this many decades also has ticks at 2 and 5.
_FEW_DECADES = 2.2


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis: its range, its kind and its ticks.

    Attributes:
        kind: "linear" or "log".
        low: figure at the beginning of the axis; > 0 on a logarithmic one.
        high: figure at its end, > low.
        ticks: round figures within [low, high], ascending.
    """

    kind: Literal["linear", "log"]
    low: float
    high: float
    ticks: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse a range that no chart can have."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"an axis must run upwards, got {self.low} to {self.high}")
        if self.kind == "log" and self.low <= 0:
            raise ConfigError(f"a logarithmic axis must begin above 0, got {self.low}")

    def share(self, value: float) -> float:
        """Where a figure lies: 0 at the beginning of the axis, 1 at its end."""
        if self.kind == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_scale(
    values: Iterable[float], *, ticks: int = 5, from_zero: bool = False, whole: bool = False
) -> Scale:
    """A linear axis that holds all values, with ticks at 1, 2 or 5 times a power of ten.

    Args:
        values: finite figures; none at all gives an axis from 0 to 1.
        ticks: about how many.
        from_zero: begin at 0; for amounts, where a cut axis would mislead.
        whole: ticks at whole numbers only, as for rounds.
    """
    found = list(values)
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if from_zero:
        low = min(0.0, low)
        high = max(high, 0.0)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        pad = abs(high) * 0.1 or 1.0
        low, high = (low if from_zero else low - pad), high + pad
    if not from_zero:
        # Points at the very edge would have their marks and labels cut.
        pad = 0.06 * (high - low)
        low, high = low - pad, high + pad
    step = _round_step((high - low) / max(1, ticks))
    if whole:
        step = max(1.0, step)
    if from_zero:
        high = math.ceil(high / step - 1e-9) * step
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Scale(
        kind="linear",
        low=low,
        high=high,
        ticks=tuple(_tidy(number * step) for number in range(first, last + 1)),
    )


def log_scale(values: Iterable[float]) -> Scale:
    """A logarithmic axis that holds all values, with ticks at powers of ten, or at 1, 2 and 5.

    Args:
        values: finite figures above 0, at least one.
    """
    found = list(values)
    if not found or min(found) <= 0:
        raise ConfigError("a logarithmic axis needs figures above 0")
    low, high = min(found), max(found)
    pad = max(1.35, (high / low) ** 0.07)
    low, high = low / pad, high * pad
    if math.log10(high / low) < 0.5:
        low, high = low / 1.8, high * 1.8
    # Up to the next round figure where that is near, so that the axis ends with a tick.
    following = min(
        f * 10.0 ** math.floor(math.log10(high))
        for f in (1, 2, 5, 10)
        if f * 10.0 ** math.floor(math.log10(high)) >= high
    )
    high = following if following < 1.5 * high else high
    factors = (1, 2, 5) if math.log10(high / low) < _FEW_DECADES else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [
        _tidy(f * 10.0**e)
        for e in exponents
        for f in factors
        if low <= f * 10.0**e <= high * (1 + 1e-9)
    ]
    stride = math.ceil(len(ticks) / 6)
    return Scale(kind="log", low=low, high=high, ticks=tuple(ticks[::stride]))


def scale_of(values: Iterable[float], *, span: float = 4.0) -> Scale:
    """Logarithmic where positive figures span a factor of at least `span`, else linear."""
    found = list(values)
    if found and min(found) > 0 and max(found) / min(found) >= span:
        return log_scale(found)
    return linear_scale(found)


# -------------------------------------------------------------------- how figures are written


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
    return f"{value:,.{decimals}f}".replace("-", _MINUS)


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
    """A time as written by `flower_privsyn.files.now`, to the minute."""
    text = str(value)
    return f"{text[:10]} {text[11:16]}" if len(text) >= 16 and text[10] == "T" else text


def finite(value: Any) -> float | None:
    """A finite number from a file; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def component_title(place: int, explained: Sequence[float | None]) -> str:
    """The title of an axis of principal components, with the share of variance it explains."""
    share = explained[place] if place < len(explained) else None
    return f"Component {place + 1}" + (f" ({100 * share:.0f} % of variance)" if share else "")


def tick_texts(ticks: Iterable[float]) -> list[str]:
    """Ticks of one axis, all with the decimals that the finest of them needs."""
    found = list(ticks)
    decimals = 0
    for tick in found:
        while decimals < 9 and abs(round(tick, decimals) - tick) > 1e-9 * max(1e-9, abs(tick)):
            decimals += 1
    if found and max(abs(tick) for tick in found) < 1e-4:
        return [number(tick, 2) for tick in found]
    return [fixed(tick, decimals) if tick else "0" for tick in found]


def log_tick_texts(ticks: Iterable[float]) -> list[str]:
    """Ticks of a logarithmic axis, each with the decimals it needs."""
    return [f"{tick:,.10f}".rstrip("0").rstrip(".") for tick in ticks]


def _round_step(rough: float) -> float:
    base = 10.0 ** math.floor(math.log10(rough))
    return float(next(base * factor for factor in (1, 2, 5, 10) if base * factor >= 0.7 * rough))


def _tidy(value: float) -> float:
    """The number without the dust of binary fractions: 0.30000000000000004 is 0.3."""
    return float(f"{value:.12g}")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _superscript(value: int) -> str:
    return str(value).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
