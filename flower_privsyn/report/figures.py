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

import numpy as np

from flower_privsyn.report.numbers import Look, bytes_text, epsilon_text, number
from flower_privsyn.report.svg import INK, MUTED, PAPER, colour, drawing, embedded

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_LINE, _NAME, _CHARACTER, _MARK = 15.0, 12.5, 7.5, 8.0
_SIGN = 24.0  # room for the mark before a name
_DASHES = ((2, 3), (8, 3, 2, 3), (9, 4), (12, 3, 2, 3), (4, 4), (14, 5), (1, 5))

_Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one method, from left to right.

    Attributes:
        name: shown beside the chart; "" for none.
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
        name: shown beside the chart.
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


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Clouds of points in a plane with one unit in both directions.

    Attributes:
        title: short name.
        description: what can be seen, for those who cannot.
        axes: titles of the horizontal and the vertical axis.
        layers: points, their colour, diameter in pixels and opacity; drawn one over the other.
        path: joined by a line, as a centre from round to round.
        marks: place, look and tooltip of each.
    """

    title: str
    description: str
    axes: tuple[str, str]
    layers: tuple[tuple[Sequence[_Point], int, float, float], ...]
    path: Sequence[_Point]
    marks: tuple[tuple[_Point, Look, str], ...]


def charts(
    shown: Sequence[Chart], identifier: str, *, wide: int = WIDE, height: int = 400
) -> list[Markup]:
    """Charts on the same axes, each for a wide screen and for a phone.

    Args:
        shown: of one kind; equally high, so that they can be compared.
        identifier: unique on the page.
        wide: width of the wide ones, in CSS pixels; up to `PANEL`, one size is for both.
        height: in CSS pixels, at least; more where names need it.
    """
    from markupsafe import Markup

    limits = _limits(shown)
    sizes = [("wide", wide, height), ("narrow", NARROW, 340)]
    drawn: list[Markup] = [Markup()] * len(shown)
    for kind, width, least in sizes if wide > PANEL else [("panel", wide, height)]:
        high = max([least, *[round(_Names(chart, width).height) + 90 for chart in shown]])
        for place, chart in enumerate(shown):
            picture = _chart(chart, limits, width, high, f"{identifier}-{place}-{kind}")
            drawn[place] += Markup('<div class="{}">{}</div>').format(kind, picture)
    return drawn


def clouds(shown: Sequence[Cloud], identifier: str) -> list[Markup]:
    """Clouds in the same part of the plane: all but the outermost points, 1 in 200 at each side."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    sides = []
    for axis in (0, 1):
        values = sorted(p[axis] for cloud in shown for layer in cloud.layers for p in layer[0])
        low, high = values[len(values) // 200], values[-1 - len(values) // 200]
        pad = 0.06 * (high - low) or 0.5
        sides.append((low - pad, high + pad))
    x, y = sides
    drawn = []
    for place, cloud in enumerate(shown):
        figure, axes = _axes(PANEL, 270, cloud.axes)
        axes.set(xlim=x, ylim=y)
        axes.locator_params(nbins=5)
        _make_room(axes, right=8)
        # One unit is as long in both directions: the shorter side is widened.
        box = axes.get_window_extent()
        unit = max((x[1] - x[0]) / box.width, (y[1] - y[0]) / box.height) / 2
        axes.set_xlim(sum(x) / 2 - unit * box.width, sum(x) / 2 + unit * box.width)
        axes.set_ylim(sum(y) / 2 - unit * box.height, sum(y) / 2 + unit * box.height)
        for points, shade, size, opacity in cloud.layers:
            held = [p for p in points if x[0] <= p[0] <= x[1] and y[0] <= p[1] <= y[1]]
            # A line of no length with round ends is a dot: all of a layer are one short element.
            twice = np.repeat(np.array(held).reshape(-1, 2), 2, axis=0)
            path = Path(twice, [Path.MOVETO, Path.LINETO] * len(held))
            dots = PathPatch(path, facecolor="none", linewidth=size, alpha=opacity)
            dots.set(edgecolor=colour(shade), capstyle="round")
            axes.add_patch(dots)
        axes.plot(*zip(*cloud.path, strict=True), color=colour(cloud.marks[-1][1].colour))
        tips = {}
        for n, (there, look, tip) in enumerate(cloud.marks):
            tips[f"tip-{n}"] = tip
            axes.plot(*there, gid=f"tip-{n}", **_marked(look, size=10))
        name = f"{identifier}-{place}"
        drawn.append(embedded(figure, cloud.title, cloud.description, name, tips))
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
    """Names of series and levels in a column at the right, each beside what it names."""

    def __init__(self, chart: Chart, width: int) -> None:
        named = [series.name for series in chart.series if series.name]
        named += [level.name for level in chart.levels]
        longest = max((len(name) for name in named), default=0)
        room = min(longest * _CHARACTER, 0.34 * width - _SIGN)
        self.texts = [textwrap.wrap(name, max(4, int(room / _CHARACTER))) for name in named]
        self.width = room + _SIGN + 8 if named else 14.0
        self.heights = [_LINE * len(lines) + 3 for lines in self.texts]
        self.height = sum(self.heights)

    def places(self, wanted: Sequence[float], low: float, high: float) -> list[float]:
        """The middle of each name, in pixels from below: near what it names, and apart.

        Args:
            wanted: where each would like to be.
            low: end of the column; it is passed where there is no room.
            high: its other end.
        """
        order = sorted(range(len(wanted)), key=lambda n: -wanted[n])
        places = list(wanted)
        for n in order:
            places[n] = min(places[n], high - self.heights[n] / 2)
            high = places[n] - self.heights[n] / 2
        for n in reversed(order):
            places[n] = max(places[n], low + self.heights[n] / 2)
            low = places[n] + self.heights[n] / 2
        return places


def _chart(
    chart: Chart, limits: tuple[_Point, _Point], width: int, height: int, identifier: str
) -> Markup:
    names = _Names(chart, width)
    figure, axes = _axes(width, height, (chart.x_title, chart.y_title), right=names.width)
    axes.set(xlim=limits[0], ylim=limits[1])
    axes.yaxis.grid()
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _set_ticks(chart, axes)
    _make_room(axes, right=names.width)
    tips: dict[str, str] = {}
    for n, level in enumerate(chart.levels):
        if level.error:
            low, high = level.y - level.error, level.y + level.error
            axes.axhspan(low, high, facecolor=INK, alpha=0.08)
        tips[f"level-{n}"] = level.tip
        dashes = _DASHES[n % len(_DASHES)]
        line = axes.axhline(level.y, color=MUTED, linewidth=1.5, dashes=dashes)
        line.set_gid(f"level-{n}")
    anchors: list[tuple[float, float, Look | None]] = []
    for n, (series, shift) in enumerate(zip(chart.series, _shifts(chart, axes), strict=True)):
        end = _draw_series(axes, series, shift, f"series-{n}", tips)
        if series.name:
            anchors.append((*end, series.look))
    edge = axes.get_window_extent().x1
    for level in chart.levels:
        anchors.append((edge, axes.transData.transform((limits[0][0], level.y))[1], None))
    _write_names(figure, names, anchors, leaders=chart.x != "bytes")
    return embedded(figure, chart.title, chart.description, identifier, tips)


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
    axes: Axes, series: Series, shift: float, name: str, tips: dict[str, str]
) -> _Point:
    """Draw a series; returns the place of its last mark, in pixels."""
    from matplotlib.transforms import Affine2D

    moved = axes.transData + Affine2D().translate(shift, 0)
    look: dict[str, Any] = {"color": colour(series.look.colour), "transform": moved}
    if series.line == "steps":
        axes.step([0.0, *series.x], [0.0, *series.y], where="post", **look)
    elif series.line == "straight":
        axes.plot(series.x, series.y, **look)
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
    x, y = moved.transform((series.x[last], series.y[last]))
    return float(x), float(y)


def _write_names(
    figure: Figure,
    names: _Names,
    anchors: Sequence[tuple[float, float, Look | None]],
    *,
    leaders: bool,
) -> None:
    from matplotlib.lines import Line2D

    width, height = figure.bbox.size
    frame = figure.axes[0].get_window_extent()
    places = names.places([y for _, y, _ in anchors], frame.y0 - 8, frame.y1 + 8)
    for (x, y, look), lines, place in zip(anchors, names.texts, places, strict=True):
        edge = frame.x1 + _SIGN
        if leaders or look is None:
            start = x if look is None else x + _MARK
            bends = [(start, y), (max(start, frame.x1 + 2), y), (edge - 14, place)]
            bends += [(edge - 4, place)] if look is None else []
            leader = Line2D(*zip(*bends, strict=True), transform=None, color=MUTED, linewidth=0.8)
            figure.add_artist(leader)
        if look is not None:
            figure.add_artist(Line2D([edge - 8], [place], transform=None, **_marked(look)))
        text = figure.text(edge / width, place / height, "\n".join(lines), fontsize=_NAME)
        text.set_verticalalignment("center")


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


def _axes(
    width: int, height: int, titles: tuple[str, str], right: float = 8.0
) -> tuple[Figure, Axes]:
    """An empty figure, with the titles of its axes at the left, where no rotation is needed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    below, above = (
        "\n".join(textwrap.wrap(title, int(room / 6.6)))
        for title, room in zip(titles, (width - right - 50, width), strict=True)
    )
    axes.set_xlabel(below)
    figure.text(0, 1 - 2 / height, above, color=MUTED, verticalalignment="top")
    return figure, axes


def _make_room(axes: Axes, *, right: float) -> None:
    """Give the axes what their texts leave of the figure.

    Args:
        axes: with ticks and titles.
        right: pixels to keep free at the right.
    """
    figure = axes.figure
    width, height = figure.bbox.size
    labels = [label for label in axes.get_yticklabels() if label.get_text()]
    left = max([label.get_window_extent().width for label in labels], default=0) + 9
    top = figure.texts[0].get_window_extent().height + 16
    bottom = axes.xaxis.label.get_window_extent().height + 26
    axes.set_position(
        (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    )
