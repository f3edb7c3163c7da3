"""Charts as SVG: points with error bars, lines, steps, and clouds of points.

Drawn by Python, with no script and no library in the page. A chart that carries names is drawn
twice, for a wide screen and for a phone, because text that is scaled down cannot be read; the page
shows one of the two. Where names do not find room, the chart is drawn higher until they do.

Every chart says in words what it shows (`<title>`, `<desc>`); every mark has its figures as a
tooltip.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from flower_privsyn.report.labels import Box, place, spread, text_width, wrap
from flower_privsyn.report.page import Html, element, join
from flower_privsyn.report.scales import Scale, log_tick_texts, tick_texts

MARKS = ("circle", "square", "triangle", "diamond", "cross", "wedge", "star", "plus")

WIDE, NARROW, PANEL = 700, 358, 320
"""Widths in which charts are drawn, in CSS pixels: beside their caption, on a phone, in a grid."""

_FONT = 12.5
_SMALL = 11.5
_LINE = 15.0
_RADIUS = 5.0
_TRIES = 7
_NAMES_AT = 28.0


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a method looks wherever it is drawn.

    Attributes:
        colour: number of the colour in the style sheet, 0 to 7.
        mark: its shape, one of `MARKS`.
    """

    colour: int
    mark: str


@dataclass(frozen=True, kw_only=True)
class Point:
    """One mark.

    Attributes:
        x: figure on the horizontal axis.
        y: figure on the vertical axis.
        error: half the length of its error bar, in the units of y; None for no bar.
        text: its tooltip.
    """

    x: float
    y: float
    error: float | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The marks of one method, from left to right.

    Attributes:
        name: shown beside the last of them; "" for none.
        style: of the marks.
        points: at least one.
        line: how they are joined.
        marks: which of them are drawn; the line goes through all.
    """

    name: str
    style: Style
    points: tuple[Point, ...]
    line: Literal["none", "straight", "steps"] = "straight"
    marks: Literal["all", "last"] = "all"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A level without a place on the horizontal axis: a line across the chart.

    Attributes:
        name: shown at its right end.
        y: the level.
        dash: pattern of the line, as SVG writes it; different for each reference of a chart.
        error: half the height of a band about it; None for none.
        text: its tooltip.
    """

    name: str
    y: float
    dash: str
    error: float | None = None
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Both axes of a chart.

    Attributes:
        x: the horizontal scale.
        y: the vertical scale.
        x_title: with its unit.
        y_title: with its unit; written above the axis, so that nobody has to turn their head.
        x_texts: of the ticks; by default the figures.
        y_texts: likewise.
    """

    x: Scale
    y: Scale
    x_title: str
    y_title: str
    x_texts: tuple[str, ...] = ()
    y_texts: tuple[str, ...] = ()

    def texts(self, axis: Literal["x", "y"]) -> list[str]:
        """What is written at the ticks of one axis."""
        scale = self.x if axis == "x" else self.y
        given = self.x_texts if axis == "x" else self.y_texts
        if given:
            return list(given)
        return log_tick_texts(scale.ticks) if scale.kind == "log" else tick_texts(scale.ticks)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn, whatever the size.

    Attributes:
        title: a short name.
        description: what can be seen, for those who cannot.
        axes: both.
        series: the marks.
        references: levels across the chart.
        names: "edge": in a column at the right, for lines; "inside": beside the marks, for points.
        dodge: pixels by which series with equal x stand apart, so that error bars can be told.
    """

    title: str
    description: str
    axes: Axes
    series: tuple[Series, ...] = ()
    references: tuple[Reference, ...] = ()
    names: Literal["edge", "inside"] = "edge"
    dodge: float = 0.0


def both_sizes(
    charts: Sequence[tuple[str, Chart]], *, wide: int = WIDE, height: int = 400
) -> list[Html]:
    """Each chart for a wide screen and for a phone; the style sheet shows one of the two.

    Args:
        charts: with identifiers that are unique on the page; all become equally high, so that
            charts with one axis can be compared.
        wide: width of the wide ones.
        height: of the wide ones, at least.
    """
    large = draw([(f"{name}-wide", chart) for name, chart in charts], wide, height)
    small = draw([(f"{name}-narrow", chart) for name, chart in charts], NARROW, 340)
    return [
        join([element("div", drawn, class_="wide"), element("div", drawn_small, class_="narrow")])
        for drawn, drawn_small in zip(large, small, strict=True)
    ]


def draw(charts: Sequence[tuple[str, Chart]], width: int, height: int) -> list[Html]:
    """Pictures of charts, all equally high, and higher where names would not find room.

    Args:
        charts: with identifiers that are unique on the page.
        width: in CSS pixels.
        height: in CSS pixels, at least.
    """
    pictures: list[list[Html]] = []
    height = max([height, *[_Drawing(chart, width, height).least_height() for _, chart in charts]])
    for growth in range(_TRIES):
        taller = round(height * (1 + 0.12 * growth))
        drawn = [_Drawing(chart, width, taller).parts() for _, chart in charts]
        pictures = [parts for parts, _ in drawn]
        if all(clean for _, clean in drawn):
            break
    return [
        _svg(chart.title, chart.description, identifier, width, taller, parts)
        for (identifier, chart), parts in zip(charts, pictures, strict=True)
    ]


def mark(style: Style, x: float, y: float, radius: float = _RADIUS, *, text: str = "") -> Html:
    """The mark of a method at a place."""
    tip = element("title", text) if text else None
    r = radius
    if style.mark in ("cross", "plus", "star"):
        diagonal = f"M{_p(x - r, y - r)}L{_p(x + r, y + r)}M{_p(x - r, y + r)}L{_p(x + r, y - r)}"
        upright = f"M{_p(x - r, y)}L{_p(x + r, y)}M{_p(x, y - r)}L{_p(x, y + r)}"
        path = {"cross": diagonal, "plus": upright, "star": diagonal + upright}[style.mark]
        return element("path", tip, d=path, class_=f"stroke c{style.colour}")
    if style.mark == "circle":
        return element("circle", tip, cx=_f(x), cy=_f(y), r=_f(r), class_=f"mark c{style.colour}")
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.2), (1.15, 0.85), (-1.15, 0.85)),
        "wedge": ((0, 1.2), (1.15, -0.85), (-1.15, -0.85)),
        "diamond": ((0, -1.3), (1.15, 0), (0, 1.3), (-1.15, 0)),
    }[style.mark]
    points = " ".join(_p(x + r * dx, y + r * dy) for dx, dy in corners)
    return element("polygon", tip, points=points, class_=f"mark c{style.colour}")


def key(entries: Sequence[tuple[Html, str]]) -> Html:
    """A legend: marks, drawn about (0, 0) within 8 units, and their names."""
    return element(
        "ul",
        *[
            element(
                "li",
                element("svg", sign, viewBox="-8 -8 16 16", aria_hidden="true"),
                element("span", name),
            )
            for sign, name in entries
        ],
        class_="legend",
    )


def legend(entries: Sequence[tuple[Style, str]]) -> Html:
    """Marks of methods with their names."""
    return key([(mark(style, 0, 0, 5.5), name) for style, name in entries])


def sign(style: Style) -> Html:
    """The mark of a method, to stand before its name in a line of text."""
    return element("svg", mark(style, 0, 0, 5.5), viewBox="-8 -8 16 16", aria_hidden="true")


class _Drawing:
    """A chart at one size."""

    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self.chart, self.width, self.height = chart, width, height
        axes = chart.axes
        self.y_texts, self.x_texts = axes.texts("y"), axes.texts("x")
        # At an edge, names take at most a third of the width.
        names = [s.name for s in chart.series if s.name] + [r.name for r in chart.references]
        gutter = 0.0
        if chart.names == "edge" and names:
            wanted = max(text_width(name, _FONT) for name in names) + _NAMES_AT + 8
            gutter = min(wanted, 0.34 * width)
        self.gutter = gutter
        left = max([text_width(text, _SMALL) for text in self.y_texts], default=0.0) + 10
        self.y_title = wrap(axes.y_title, width - 4, _SMALL)
        right = max(gutter, 14.0)
        self.x_title = wrap(axes.x_title, width - left - right, _SMALL)
        self.frame = Box(
            left,
            _LINE * len(self.y_title) + 12,
            width - right,
            height - 26 - _LINE * len(self.x_title),
        )

    def x(self, value: float) -> float:
        return self.frame.left + self.chart.axes.x.share(value) * (
            self.frame.right - self.frame.left
        )

    def y(self, value: float) -> float:
        return self.frame.bottom - self.chart.axes.y.share(value) * (
            self.frame.bottom - self.frame.top
        )

    def places(self) -> list[list[tuple[float, float]]]:
        """Where each mark of each series stands, dodged."""
        series = self.chart.series
        step = self.chart.dodge * (1.0 if self.width > NARROW else 0.7)
        if step:
            # Neither out of the chart nor half way to the next figure.
            used = sorted({self.x(point.x) for each in series for point in each.points})
            room = 2 * min(used[0] - self.frame.left, self.frame.right - used[-1])
            gaps = [after - before for before, after in itertools.pairwise(used)]
            room = min([room, *[0.8 * gap for gap in gaps]]) - 2 * _RADIUS
            step = max(0.0, min(step, room / max(1, len(series) - 1)))
        shifts = [(number - (len(series) - 1) / 2) * step for number in range(len(series))]
        if all(each.line == "none" for each in series):
            shifts = _apart([(self.x(s.points[-1].x), self.y(s.points[-1].y)) for s in series])
        return [
            [(self.x(point.x) + shift, self.y(point.y)) for point in each.points]
            for each, shift in zip(series, shifts, strict=True)
        ]

    def parts(self) -> tuple[list[Html], bool]:
        places = self.places()
        names, clean = (
            self._edge_names(places) if self.chart.names == "edge" else self._inside_names(places)
        )
        parts = [*self._axes(), *self._references()]
        for series, where in zip(self.chart.series, places, strict=True):
            parts += self._line(series, where)
        for series, where in zip(self.chart.series, places, strict=True):
            for point, (x, y) in _marked(series, where):
                if point.error:
                    parts.append(self._error_bar(series.style, x, point))
                parts.append(mark(series.style, x, y, text=point.text))
        return [*parts, *names], clean

    # ---------------------------------------------------------------- axes and levels

    def _axes(self) -> list[Html]:
        frame, axes = self.frame, self.chart.axes
        parts = [
            _text(line, 0, _LINE * (number + 1) - 3, _SMALL, kind="quiet")
            for number, line in enumerate(self.y_title)
        ]
        for value, text in zip(axes.y.ticks, self.y_texts, strict=True):
            y = self.y(value)
            parts.append(_line("grid", frame.left, y, frame.right, y))
            parts.append(_text(text, frame.left - 7, y + 4, _SMALL, kind="quiet", anchor="end"))
        parts.append(_line("axis", frame.left, frame.bottom, frame.right, frame.bottom))
        edge = -math.inf
        for value, text in zip(axes.x.ticks, self.x_texts, strict=True):
            x, half = self.x(value), text_width(text, _SMALL) / 2
            parts.append(_line("axis", x, frame.bottom, x, frame.bottom + 4))
            if x - half < edge + 4:
                continue  # a tick without its figure, rather than figures that run together
            edge = x + half
            parts.append(_text(text, x, frame.bottom + 18, _SMALL, kind="quiet", anchor="middle"))
        for number, line in enumerate(self.x_title):
            parts.append(
                _text(line, frame.left, frame.bottom + 34 + _LINE * number, _SMALL, kind="quiet")
            )
        return parts

    def _references(self) -> list[Html]:
        parts = []
        frame = self.frame
        for reference in self.chart.references:
            y = self.y(reference.y)
            if reference.error:
                high, low = (
                    self.y(reference.y + reference.error),
                    self.y(reference.y - reference.error),
                )
                parts.append(
                    element(
                        "rect",
                        x=_f(frame.left),
                        y=_f(high),
                        width=_f(frame.right - frame.left),
                        height=_f(max(0.0, low - high)),
                        fill="currentColor",
                        opacity="0.08",
                    )
                )
            tip = element("title", reference.text) if reference.text else None
            parts.append(
                element(
                    "path",
                    tip,
                    d=f"M{_p(frame.left, y)}H{_f(frame.right)}",
                    class_="reference",
                    stroke_dasharray=reference.dash or None,
                )
            )
        return parts

    def _line(self, series: Series, where: Sequence[tuple[float, float]]) -> list[Html]:
        if series.line == "none" or len(where) < 2:
            return []
        path = f"M{_p(*where[0])}"
        for x, y in where[1:]:
            path += f"H{_f(x)}V{_f(y)}" if series.line == "steps" else f"L{_p(x, y)}"
        return [element("path", d=path, class_=f"line c{series.style.colour}")]

    def _error_bar(self, style: Style, x: float, point: Point) -> Html:
        error = point.error or 0.0
        high, low = self.y(point.y + error), self.y(point.y - error)
        path = f"M{_p(x, high)}V{_f(low)}M{_p(x - 3, high)}h6M{_p(x - 3, low)}h6"
        return element("path", d=path, class_=f"error c{style.colour}")

    # ---------------------------------------------------------------- names

    def _edge_lines(self) -> list[list[str]]:
        """The names in the column at the right, each in as many lines as it needs there."""
        names = [s.name for s in self.chart.series if s.name]
        names += [r.name for r in self.chart.references]
        return [wrap(name, self.gutter - _NAMES_AT, _FONT) for name in names]

    def least_height(self) -> int:
        """How high the chart must be for the column of names."""
        if self.chart.names == "inside":
            return 0
        column = sum(_LINE * len(lines) + 3 for lines in self._edge_lines())
        return math.ceil(self.frame.top - 8 + column + 4)

    def _edge_names(self, places: list[list[tuple[float, float]]]) -> tuple[list[Html], bool]:
        frame = self.frame
        anchors: list[tuple[float, float, Style | None]] = []
        for series, where in zip(self.chart.series, places, strict=True):
            if series.name:
                anchors.append((*where[-1], series.style))
        anchors += [(frame.right, self.y(r.y), None) for r in self.chart.references]
        lines = self._edge_lines()
        heights = [_LINE * len(found) + 3 for found in lines]
        column = spread([y for _, y, _ in anchors], heights, frame.top - 8, float(self.height) - 4)
        if column is None:
            return [], False
        parts = []
        for (x, y, style), found, centre in zip(anchors, lines, column, strict=True):
            start = x + (_RADIUS + 2 if style is not None else 0)
            bend = frame.right + 2
            path = f"M{_p(start, y)}H{_f(max(start, bend))}L{_p(frame.right + 13, centre)}"
            if style is None:
                path += f"H{_f(frame.right + _NAMES_AT - 3)}"
            parts.append(element("path", d=path, class_="leader"))
            if style is not None:
                parts.append(mark(style, frame.right + _NAMES_AT - 9, centre, 4))
            top = centre - _LINE * (len(found) - 1) / 2
            parts += [
                _text(line, frame.right + _NAMES_AT, top + _LINE * number + 4, _FONT)
                for number, line in enumerate(found)
            ]
        return parts, True

    def _inside_names(
        self, places: list[list[tuple[float, float]]], avoid: Sequence[tuple[float, float]] = ()
    ) -> tuple[list[Html], bool]:
        frame = self.frame
        room = Box(frame.left + 2, frame.top - 8, float(self.width), frame.bottom - 2)
        obstacles = [(box, 0.5) for box in _along(avoid, "straight")]
        for series, where in zip(self.chart.series, places, strict=True):
            for point, (x, y) in _marked(series, where):
                r = _RADIUS + 1
                obstacles.append((Box(x - r, y - r, x + r, y + r), 1.0))
                if point.error:
                    high, low = self.y(point.y + point.error), self.y(point.y - point.error)
                    # Not worth a taller chart: in one, the bar would be longer as well.
                    obstacles.append((Box(x - 3, high, x + 3, low), 0.9))
            if series.line != "none":
                obstacles += [(box, 0.5) for box in _along(where, series.line)]
        for reference in self.chart.references:
            y = self.y(reference.y)
            obstacles.append((Box(frame.left, y - 2, frame.right, y + 2), 0.7))

        choices: list[list[Box]] = []
        texts: list[list[str]] = []
        origins: list[tuple[float, float] | None] = []
        for series, where in zip(self.chart.series, places, strict=True):
            if series.name:
                found = wrap(series.name, 0.3 * self.width, _FONT)
                texts.append(found)
                choices.append(_around(*where[-1], found))
                origins.append(where[-1])
        for reference in self.chart.references:
            found = wrap(reference.name, 0.6 * self.width, _FONT)
            texts.append(found)
            choices.append(_on_level(self.y(reference.y), found, frame))
            origins.append(None)
        chosen, clean = place(choices, obstacles, room)

        parts = []
        for options, choice, found, origin in zip(choices, chosen, texts, origins, strict=True):
            box = options[choice]
            if origin is not None:
                x = min(max(origin[0], box.left), box.right)
                y = min(max(origin[1], box.top), box.bottom)
                if math.hypot(x - origin[0], y - origin[1]) > 2 * _RADIUS:
                    parts.append(_line("leader", *origin, x, y))
            parts += [
                _text(line, box.left + 1, box.top + _LINE * number + 11.5, _FONT, kind="halo")
                for number, line in enumerate(found)
            ]
        return parts, clean


def _apart(places: Sequence[tuple[float, float]]) -> list[float]:
    """How far to move marks sideways that would cover one another."""
    groups: list[list[int]] = []
    for number, (x, y) in enumerate(places):
        near = [
            group
            for group in groups
            if any(math.hypot(x - places[n][0], y - places[n][1]) < 2 * _RADIUS for n in group)
        ]
        merged = sorted([number, *[n for group in near for n in group]])
        groups = [group for group in groups if group not in near] + [merged]
    shifts = [0.0] * len(places)
    for group in groups:
        middle = sum(places[n][0] for n in group) / len(group)
        ordered = sorted(group, key=lambda n: (places[n][0], n))
        for rank, number in enumerate(ordered if len(group) > 1 else ()):
            wanted = middle + (rank - (len(group) - 1) / 2) * (2 * _RADIUS + 1)
            shifts[number] = wanted - places[number][0]
    return shifts


def _marked(
    series: Series, where: Sequence[tuple[float, float]]
) -> list[tuple[Point, tuple[float, float]]]:
    """The points of a series that have a mark, and where they stand."""
    found = list(zip(series.points, where, strict=True))
    return found if series.marks == "all" else found[-1:]


def _size(lines: Sequence[str]) -> tuple[float, float]:
    return max(text_width(line, _FONT) for line in lines) + 2, _LINE * len(lines)


def _around(x: float, y: float, lines: Sequence[str]) -> list[Box]:
    """Places for a name around a mark, the nearest first."""
    width, height = _size(lines)
    found = []
    for gap in (_RADIUS + 3, _RADIUS + 14, _RADIUS + 28, _RADIUS + 46):
        near = gap * 0.7
        for left, top in (
            (x + gap, y - height / 2),
            (x - gap - width, y - height / 2),
            (x - width / 2, y - gap - height),
            (x - width / 2, y + gap),
            (x + near, y - near - height),
            (x - near - width, y - near - height),
            (x + near, y + near),
            (x - near - width, y + near),
        ):
            found.append(Box(left, top, left + width, top + height))
    return found


def _on_level(y: float, lines: Sequence[str], frame: Box) -> list[Box]:
    """Places for a name above and below a line across the chart, the right end first."""
    width, height = _size(lines)
    found = []
    for share in (1.0, 0.0, 0.5, 0.75, 0.25):
        left = frame.left + 3 + share * max(0.0, frame.right - frame.left - width - 3)
        found += [Box(left, top, left + width, top + height) for top in (y - height - 3, y + 3)]
    return found


def _along(where: Sequence[tuple[float, float]], line: str) -> list[Box]:
    """Small boxes along a line, which names should not cover."""
    corners = list(where)
    if line == "steps":
        corners = [
            corner
            for (x, y), (following, height) in itertools.pairwise(where)
            for corner in ((x, y), (following, y), (following, height))
        ] or corners
    boxes = []
    for (x, y), (right, bottom) in itertools.pairwise(corners):
        count = max(1, round(math.hypot(right - x, bottom - y) / 8))
        for number in range(count + 1):
            along, down = x + (right - x) * number / count, y + (bottom - y) * number / count
            boxes.append(Box(along - 3, down - 3, along + 3, down + 3))
    return boxes


# -------------------------------------------------------------------- clouds


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Many points that are looked at together.

    Attributes:
        points: (x, y) of each.
        colour: number of the colour in the style sheet.
        size: diameter in pixels.
        opacity: in (0, 1].
        name: shown at its centre; "" for none.
        style: of the mark at its centre; None for no mark.
    """

    points: tuple[tuple[float, float], ...]
    colour: int
    size: float = 3.0
    opacity: float = 1.0
    name: str = ""
    style: Style | None = None
    centre: tuple[float, float] | None = field(init=False)

    def __post_init__(self) -> None:
        """Find the centre."""
        count = len(self.points)
        middle = (
            (sum(x for x, _ in self.points) / count, sum(y for _, y in self.points) / count)
            if count
            else None
        )
        object.__setattr__(self, "centre", middle)


@dataclass(frozen=True, kw_only=True)
class CloudFrame:
    """The part of the plane that several clouds are shown in, to one scale in both directions.

    Attributes:
        x: (low, high).
        y: (low, high).
    """

    x: tuple[float, float]
    y: tuple[float, float]

    @classmethod
    def around(cls, points: Sequence[tuple[float, float]]) -> CloudFrame:
        """A frame around all but the outermost points: 1 in 200 at each side may be cut off."""
        if not points:
            return cls(x=(-1.0, 1.0), y=(-1.0, 1.0))
        sides = []
        for values in (sorted(x for x, _ in points), sorted(y for _, y in points)):
            cut = len(values) // 200
            low, high = values[cut], values[-1 - cut]
            pad = 0.06 * (high - low) or 0.5
            sides.append((low - pad, high + pad))
        return cls(x=sides[0], y=sides[1])

    def holds(self, point: tuple[float, float]) -> bool:
        """Whether a point lies in the frame."""
        return self.x[0] <= point[0] <= self.x[1] and self.y[0] <= point[1] <= self.y[1]


def thinned(points: Sequence[tuple[float, float]], most: int) -> tuple[tuple[float, float], ...]:
    """At most so many of the points, evenly through the list."""
    if len(points) <= most:
        return tuple(points)
    return tuple(points[place * len(points) // most] for place in range(most))


def dots(colour: int, size: float, opacity: float) -> Html:
    """Points of a cloud, for a legend."""
    return element(
        "path",
        d="M-4 2h0M1 -4h0M4 3h0",
        class_=f"dots c{colour}",
        stroke_width=size,
        opacity=opacity,
    )


def cloud_chart(
    clouds: Sequence[Cloud],
    frame: CloudFrame,
    *,
    titles: tuple[str, str],
    title: str,
    description: str,
    identifier: str,
    joined: Sequence[tuple[float, float]] = (),
    path_colour: int = 7,
    width: int = PANEL,
) -> Html:
    """Clouds of points to one scale, with the centres of those that have a name.

    Args:
        clouds: drawn one over the other.
        frame: what is shown; points outside are left out.
        titles: of the horizontal and the vertical axis, with units.
        title: short name.
        description: what can be seen.
        identifier: unique on the page.
        joined: a path, as of a centre from round to round.
        path_colour: of that path.
        width: in CSS pixels.
    """
    across, up = frame.x[1] - frame.x[0], frame.y[1] - frame.y[0]
    # One unit is as long in both directions: the shorter side is widened, within reason.
    ratio = min(1.25, max(0.6, up / across))
    if up / across < ratio:
        middle = (frame.y[0] + frame.y[1]) / 2
        frame = replace(frame, y=(middle - ratio * across / 2, middle + ratio * across / 2))
    elif up / across > ratio:
        middle = (frame.x[0] + frame.x[1]) / 2
        frame = replace(frame, x=(middle - up / ratio / 2, middle + up / ratio / 2))
    x_scale = Scale(kind="linear", low=frame.x[0], high=frame.x[1], ticks=_ticks(*frame.x))
    y_scale = Scale(kind="linear", low=frame.y[0], high=frame.y[1], ticks=_ticks(*frame.y))
    axes = Axes(x=x_scale, y=y_scale, x_title=titles[0], y_title=titles[1])
    chart = Chart(
        title=title,
        description=description,
        axes=axes,
        names="inside",
        series=tuple(
            Series(
                name=cloud.name,
                style=cloud.style,
                points=(Point(x=cloud.centre[0], y=cloud.centre[1], text=cloud.name),),
                line="none",
            )
            for cloud in clouds
            if cloud.style is not None and cloud.centre is not None
        ),
    )
    probe = _Drawing(chart, width, 1000)
    inner = probe.frame.right - probe.frame.left
    height = round(1000 - (probe.frame.bottom - probe.frame.top) + inner * ratio)
    drawing = _Drawing(chart, width, height)
    parts: list[Html] = list(drawing._axes())
    for cloud in clouds:
        path = "".join(
            f"M{_p(drawing.x(x), drawing.y(y), 1)}h0"
            for x, y in cloud.points
            if frame.holds((x, y))
        )
        if path:
            parts.append(
                element(
                    "path",
                    d=path,
                    class_=f"dots c{cloud.colour}",
                    stroke_width=cloud.size,
                    opacity=cloud.opacity,
                )
            )
    corners = [(drawing.x(x), drawing.y(y)) for x, y in joined]
    if len(corners) > 1:
        path = "M" + "L".join(_p(x, y) for x, y in corners)
        parts.append(element("path", d=path, class_=f"line c{path_colour}"))
    places = drawing.places()
    for series, where in zip(chart.series, places, strict=True):
        parts.append(mark(series.style, *where[0], text=series.points[0].text))
    names, _ = drawing._inside_names(places, corners)
    return _svg(title, description, identifier, width, height, [*parts, *names])


def _ticks(low: float, high: float) -> tuple[float, ...]:
    from flower_privsyn.report.scales import linear_scale

    found = linear_scale([low, high], ticks=4).ticks
    return tuple(tick for tick in found if low <= tick <= high)


# -------------------------------------------------------------------- SVG


def _svg(
    title: str,
    description: str,
    identifier: str,
    width: int,
    height: int,
    parts: Sequence[Html],
) -> Html:
    return element(
        "svg",
        element("title", title, id=f"{identifier}-title"),
        element("desc", description, id=f"{identifier}-desc"),
        *parts,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=f"{identifier}-title {identifier}-desc",
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("path", d=f"M{_p(x1, y1)}L{_p(x2, y2)}", class_=kind)


def _text(
    text: str,
    x: float,
    y: float,
    size: float,
    *,
    kind: str | None = None,
    anchor: str | None = None,
) -> Html:
    return element("text", text, x=_f(x), y=_f(y), font_size=size, class_=kind, text_anchor=anchor)


def _f(value: float, decimals: int = 1) -> str:
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _p(x: float, y: float, decimals: int = 1) -> str:
    return f"{_f(x, decimals)} {_f(y, decimals)}"
