"""Figures of a page, drawn by matplotlib: charts on shared axes, and clouds of points.

A chart is drawn for a wide screen and for a phone, since text that is scaled down cannot be read;
the page shows one of the two. Every figure says in words what it shows, and every mark has its
figures as a tooltip.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from flower_privsyn.report.numbers import Look, bytes_text, epsilon_text, number
from flower_privsyn.report.svg import INK, MUTED, PAPER, colour, drawing, embedded

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

#: Number of colours of methods; 6 and 7 besides are the ink of the page and its grey.
PALETTE = 6

#: Marks of matplotlib, by the names that the catalogue of methods gives them, and how much larger
#: each must be drawn to look as large as the others.
MARKS = {
    "circle": ("o", 1.0),
    "square": ("s", 0.95),
    "triangle": ("^", 1.2),
    "diamond": ("D", 1.0),
    "cross": ("X", 1.2),
    "wedge": ("v", 1.2),
    "star": ("*", 1.7),
    "plus": ("P", 1.2),
}

#: In CSS pixels: beside a caption, on a phone, in a grid.
WIDE, NARROW, PANEL = 700, 358, 320
_LINE, _CHARACTER, _MARK = 16.0, 7.5, 8.0
_SIGN = 46.0  # room for the mark before a name, and between names
_DASHES = ((2, 3), (8, 3, 2, 3), (9, 4), (12, 3, 2, 3), (4, 4), (14, 5), (1, 5))

_Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one method, from left to right.

    Attributes:
        name: shown below the chart; "" for none.
        look: of the marks.
        x: figures on the horizontal axis.
        y: figures on the vertical axis, as many.
        errors: half the length of each error bar, in the units of y; None for no bar.
        tips: tooltips of the marks.
        line: how the points are joined; of steps, which begin at 0, only the last has a mark.
    """

    name: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    errors: Sequence[float | None] = ()
    tips: Sequence[str]
    line: Literal["none", "straight", "steps"] = "straight"

    def ends(self) -> list[float]:
        """Both ends of every error bar."""
        errors = self.errors or [None] * len(self.y)
        return [y + s * (e or 0) for y, e in zip(self.y, errors, strict=True) for s in (-1, 1)]


@dataclass(frozen=True, kw_only=True)
class Level:
    """A figure without a place on the horizontal axis: a line across the chart.

    Attributes:
        name: shown below the chart.
        y: the figure.
        error: half the height of a band about it; None for none.
        tip: tooltip of the line.
    """

    name: str
    y: float
    error: float | None = None
    tip: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Series and levels over one horizontal axis.

    Attributes:
        title: short name.
        description: what can be seen, for those who cannot.
        x: what the horizontal axis is of. "round": linear from 0, and the vertical axis holds 0;
            "epsilon": logarithmic with ticks at the budgets; "bytes": logarithmic.
        x_title: with its unit.
        y_title: with its unit; written above the axis, so that nobody has to turn their head.
        series: the marks.
        levels: lines across the chart.
    """

    title: str
    description: str
    x: Literal["round", "epsilon", "bytes"]
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    levels: tuple[Level, ...] = ()


def by_round(
    lines: Sequence[tuple[str, Look, Sequence[tuple[int, float]]]],
    *,
    steps: bool = False,
    x_title: str = "Round",
    **parts: Any,
) -> Chart:
    """A chart over rounds.

    Args:
        lines: name, look, and round and figure of every point.
        steps: whether they are steps, which begin at 0.
        x_title: of the horizontal axis.
        parts: what else a `Chart` has.
    """
    series = tuple(
        Series(
            name=name,
            look=look,
            x=[n for n, _ in points],
            y=[value for _, value in points],
            tips=[f"round {n}: {number(value)}" for n, value in points],
            line="steps" if steps else "straight",
        )
        for name, look, points in lines
    )
    return Chart(x="round", x_title=x_title, series=series, **parts)


def charts(
    shown: Sequence[Chart], identifier: str, *, wide: int = WIDE, height: int = 400
) -> list[Markup]:
    """Charts on the same axes, each for a wide screen and for a phone.

    Args:
        shown: of one kind; equally high, so that they can be compared.
        identifier: unique on the page.
        wide: width of the wide ones, in CSS pixels; up to `PANEL`, one size is for both.
        height: in CSS pixels, without the names below.
    """
    from markupsafe import Markup

    limits = _limits(shown)
    sizes = [("wide", wide, height), ("narrow", NARROW, 340)]
    drawn: list[Markup] = [Markup()] * len(shown)
    for kind, width, least in sizes if wide > PANEL else [("panel", wide, height)]:
        high = least + round(max(_Names(chart, width).height for chart in shown))
        for place, chart in enumerate(shown):
            picture = _chart(chart, limits, width, high, f"{identifier}-{place}-{kind}")
            drawn[place] += Markup('<div class="{}">{}</div>').format(kind, picture)
    return drawn


@cache
def sign(shade: int, mark: str = "circle", size: float = 11, opacity: float = 1) -> Markup:
    """A mark alone, to stand before a name in a line of text.

    Args:
        shade: number of its colour.
        mark: its shape.
        size: in pixels, of 16.
        opacity: in (0, 1].
    """
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(16 / 72, 16 / 72))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.plot(0, 0, alpha=opacity, **_marked(Look(shade, mark), size=size))
        return embedded(figure)


# -------------------------------------------------------------------- charts


def _limits(shown: Sequence[Chart]) -> tuple[_Point, _Point]:
    """The ranges of both axes that hold everything, with room for marks at the edge."""
    xs = [x for chart in shown for series in chart.series for x in series.x] or [1.0]
    ys = [level.y + s * (level.error or 0) for c in shown for level in c.levels for s in (-1, 1)]
    ys += [y for chart in shown for series in chart.series for y in series.ends()]
    if shown[0].x == "round":
        low, high = min(0.0, *ys), max(0.0, *ys)
        pad = 0.05 * (high - low) or 1.0
        return (0, max(xs)), (low - pad if low < 0 else 0, high + pad)
    factor = max(1.6, (max(xs) / min(xs)) ** 0.2)  # 1.6 squared: there is a 1, 2 or 5 between
    pad = 0.06 * (max(ys) - min(ys)) or 0.1 * abs(max(ys)) or 1.0
    return (min(xs) / factor, max(xs) * factor), (min(ys) - pad, max(ys) + pad)


class _Names:
    """Names of series and levels, in as many columns below the chart as there is room for."""

    def __init__(self, chart: Chart, width: int) -> None:
        named = [series.name for series in chart.series if series.name]
        named += [level.name for level in chart.levels]
        longest = max((len(name) for name in named), default=0)
        most = int((width - _SIGN) / _CHARACTER)
        self.texts = [textwrap.fill(name, most) for name in named]
        self.columns = max(1, int(width / (longest * _CHARACTER + _SIGN)))
        lines = sum(text.count("\n") + 1 for text in self.texts)
        self.height = _LINE * math.ceil(lines / self.columns)


def _chart(
    chart: Chart, limits: tuple[_Point, _Point], width: int, height: int, identifier: str
) -> Markup:
    figure, axes = axes_of(width, height, (chart.x_title, chart.y_title))
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.yaxis.grid()
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _set_ticks(chart, axes)
    handles = _handles(chart)
    if handles:
        names = _Names(chart, width)
        figure.legend(handles, names.texts, loc="outside lower left", ncols=names.columns)
    settle(figure)
    tips: dict[str, str] = {}
    for n, level in enumerate(chart.levels):
        if level.error:
            low, high = level.y - level.error, level.y + level.error
            axes.axhspan(low, high, facecolor=INK, alpha=0.08)
        tips[f"level-{n}"] = level.tip
        axes.axhline(level.y, gid=f"level-{n}", **_dashed(n))
    for n, (series, shift) in enumerate(zip(chart.series, _shifts(chart, axes), strict=True)):
        _draw_series(axes, series, _strokes(chart)[n], shift, f"series-{n}", tips)
    return embedded(figure, chart.title, chart.description, identifier, tips)


def _dashed(place: int) -> dict[str, Any]:
    """Arguments of the line of a level."""
    return {"color": MUTED, "linewidth": 1.5, "dashes": _DASHES[place % len(_DASHES)]}


def _strokes(chart: Chart) -> list[Any]:
    """The line style of each series: dashes tell apart those that look the same."""
    looks = [series.look for series in chart.series]
    before = [looks[:n].count(look) for n, look in enumerate(looks)]
    return [(0, _DASHES[count % len(_DASHES)]) if count else "-" for count in before]


def _handles(chart: Chart) -> list[Line2D]:
    """A mark or a line for each name, in the order of the names."""
    from matplotlib.lines import Line2D

    found = []
    for series, stroke in zip(chart.series, _strokes(chart), strict=True):
        look = _marked(series.look) | {"color": colour(series.look.colour)}
        if series.line != "none":
            look["linestyle"] = stroke
        if series.name:
            found.append(Line2D([], [], **look))
    return found + [Line2D([], [], **_dashed(n)) for n in range(len(chart.levels))]


def _set_ticks(chart: Chart, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    round_steps: dict[str, Any] = {"nbins": 6, "steps": [1, 2, 5, 10]}
    axes.yaxis.set_major_locator(MaxNLocator(**round_steps))
    if chart.x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, **round_steps))
        return
    axes.set_xscale("log")
    axes.minorticks_off()
    if chart.x == "epsilon":
        ticks = sorted({x for series in chart.series for x in series.x})
    else:
        low, high = axes.get_xlim()
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        between = (1, 2, 5) if math.log10(high / low) < 2.2 else (1,)
        ticks = [v for p in powers for m in between if low <= (v := m * 10.0**p) <= high]
        ticks = ticks[:: math.ceil(len(ticks) / 4)]
    words = epsilon_text if chart.x == "epsilon" else bytes_text
    axes.set_xticks(ticks, [words(tick) for tick in ticks])


def _shifts(chart: Chart, axes: Axes) -> list[float]:
    """How far each series stands aside, in pixels, so that marks and bars can be told apart."""
    count = len(chart.series)
    if chart.x == "round" or not count:
        return [0.0] * count
    across = axes.transData.transform
    if chart.x == "epsilon":
        frame = axes.get_window_extent()
        places = sorted({across((x, 1))[0] for series in chart.series for x in series.x})
        room = [0.8 * (after - before) for before, after in itertools.pairwise(places)]
        room += [2 * (places[0] - frame.x0), 2 * (frame.x1 - places[-1])]
        step = min(12.0, min(room) / count)
        return [(n - (count - 1) / 2) * step for n in range(count)]
    taken: list[_Point] = []
    shifts = [0.0] * count
    for n in sorted(range(count), key=lambda n: (chart.series[n].x[-1], n)):
        start, y = across((chart.series[n].x[-1], chart.series[n].y[-1]))
        while any(math.hypot(start + shifts[n] - a, y - b) < _MARK + 2 for a, b in taken):
            shifts[n] += 1.0
        taken.append((start + shifts[n], y))
    return shifts


def _draw_series(
    axes: Axes, series: Series, stroke: Any, shift: float, name: str, tips: dict[str, str]
) -> None:
    from matplotlib.transforms import Affine2D

    moved = axes.transData + Affine2D().translate(shift, 0)
    look: dict[str, Any] = {"color": colour(series.look.colour), "transform": moved}
    if series.line == "steps":
        axes.step([0.0, *series.x], [0.0, *series.y], where="post", linestyle=stroke, **look)
    elif series.line == "straight":
        axes.plot(series.x, series.y, linestyle=stroke, **look)
    last = len(series.x) - 1
    size = _MARK if last < 25 else _MARK / 2
    for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        error = series.errors[place] if series.errors else None
        if error:
            caps: dict[str, Any] = {"marker": "_", "markersize": 6, "markeredgewidth": 1.5}
            axes.plot([x, x], [y - error, y + error], linewidth=1.5, **caps, **look)
        if series.line != "steps" or place == last:
            tips[f"{name}-{place}"] = series.tips[place]
            marked = _marked(series.look, size=size)
            axes.plot(x, y, gid=f"{name}-{place}", transform=moved, **marked)


# -------------------------------------------------------------------- matplotlib


def _marked(look: Look, size: float = _MARK) -> dict[str, Any]:
    """Arguments of a line that is a mark alone."""
    marker, factor = MARKS[look.mark]
    return {
        "linestyle": "none",
        "marker": marker,
        "markersize": size * factor,
        "markerfacecolor": colour(look.colour),
        "markeredgecolor": PAPER,
        "markeredgewidth": size / 8,
    }


def axes_of(width: int, height: int, titles: tuple[str, str]) -> tuple[Figure, Axes]:
    """An empty figure, with the titles of its axes at the left, where no rotation is needed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
    axes = figure.add_subplot()
    below, above = titles
    axes.set_xlabel(textwrap.fill(below, int((width - 50) / 6.6)))
    figure.suptitle(
        textwrap.fill(above, int(width / 6.6)), x=0, horizontalalignment="left", color=MUTED
    )
    return figure, axes


def settle(figure: Figure) -> None:
    """Give the axes what their texts leave of the figure, once and for all."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
