"""Marks stand where their figures are, and names are drawn beside them."""

from __future__ import annotations

import itertools
import re

import pytest

from flower_privsyn.report.charts import (
    MARKS,
    PANEL,
    Axes,
    Chart,
    Cloud,
    CloudFrame,
    Point,
    Reference,
    Series,
    Style,
    both_sizes,
    cloud_chart,
    draw,
    mark,
    thinned,
)
from flower_privsyn.report.page import join
from flower_privsyn.report.scales import linear_scale, log_scale
from tests.report.pages import Node, read


def chart(**changes: object) -> Chart:
    values: dict[str, object] = {
        "title": "Quality",
        "description": "It rises.",
        "axes": Axes(
            x=log_scale([1, 100]), y=linear_scale([0, 1]), x_title="bytes", y_title="share"
        ),
        "series": (
            Series(
                name="POPri",
                style=Style(colour=0, mark="circle"),
                points=(Point(x=1, y=0.2, error=0.1), Point(x=100, y=0.8, text="eighty")),
            ),
        ),
        **changes,
    }
    return Chart(**values)  # type: ignore[arg-type]


def picture(shown: Chart, *, width: int = 700, height: int = 400) -> Node:
    return read(draw([("x", shown)], width, height)[0])


def ticks(root: Node, axis: str) -> dict[str, float]:
    """Where the ticks of an axis are, by what is written at them."""
    anchor, place = ("middle", "x") if axis == "x" else ("end", "y")
    return {
        node.text: float(node.attributes[place] or "nan")
        for node in root.all("text")
        if node.attributes.get("text-anchor") == anchor
    }


class TestPlaces:
    def test_a_mark_is_between_the_ticks_where_its_figure_is(self) -> None:
        root = picture(chart())
        first, second = (n for n in root.all("circle") if n.attributes["r"] == "5")
        x, y = ticks(root, "x"), ticks(root, "y")
        assert float(first.attributes["cx"] or 0) == pytest.approx(x["1"], abs=0.2)
        assert float(second.attributes["cx"] or 0) == pytest.approx(x["100"], abs=0.2)
        assert x["10"] == pytest.approx((x["1"] + x["100"]) / 2, abs=0.2)
        # Text is set 4 units below the line that it names.
        assert float(first.attributes["cy"] or 0) == pytest.approx(y["0.2"] - 4, abs=0.2)
        assert float(second.attributes["cy"] or 0) == pytest.approx(y["0.8"] - 4, abs=0.2)
        assert second.all("title")[0].text == "eighty"

    def test_an_error_bar_reaches_as_far_as_the_error(self) -> None:
        root = picture(chart())
        y = ticks(root, "y")
        (bar,) = root.with_class("error")
        found = re.match(r"M[\d.]+ ([\d.]+)V([\d.]+)", bar.attributes["d"] or "")
        assert found is not None
        length = float(found[2]) - float(found[1])
        assert length == pytest.approx(y["0.2"] - y["0.4"], abs=0.3)

    def test_a_level_goes_across(self) -> None:
        root = picture(chart(references=(Reference(name="floor", y=0.4, dash="2 3", error=0.05),)))
        (level,) = root.with_class("reference")
        y = ticks(root, "y")["0.4"] - 4
        assert re.fullmatch(
            rf"M[\d.]+ {y:.1f}H[\d.]+".replace(".0H", r"(\.0)?H"), level.attributes["d"] or ""
        )
        assert level.attributes["stroke-dasharray"] == "2 3"
        assert "floor" in root.text

    def test_steps_go_along_and_then_up(self) -> None:
        steps = Series(
            name="ε",
            style=Style(colour=0, mark="square"),
            points=(Point(x=1, y=0), Point(x=10, y=0.5), Point(x=100, y=1)),
            line="steps",
            marks="last",
        )
        root = picture(chart(series=(steps,)))
        (line,) = root.with_class("line")
        assert re.fullmatch(r"M\S+ \S+H\S+V\S+H\S+V\S+", line.attributes["d"] or "")
        # One mark on the line, one beside the name.
        assert len(root.with_class("mark")) == 2

    def test_marks_that_would_cover_one_another_are_moved_apart(self) -> None:
        twins = tuple(
            Series(
                name=name,
                style=Style(colour=number, mark="circle"),
                points=(Point(x=10, y=0.5),),
                line="none",
            )
            for number, name in enumerate(("one", "two", "three"))
        )
        root = picture(chart(series=twins, names="inside"))
        places = sorted(float(n.attributes["cx"] or 0) for n in root.all("circle"))
        assert [b - a for a, b in itertools.pairwise(places)] == pytest.approx([11, 11], abs=0.2)
        assert places[1] == pytest.approx(ticks(root, "x")["10"], abs=0.2)


class TestNames:
    def test_a_chart_grows_until_all_have_room(self) -> None:
        many = tuple(
            Series(
                name=f"a method with a long name, the {number} of them",
                style=Style(colour=0, mark="circle"),
                points=(Point(x=1, y=0.5),),
            )
            for number in range(14)
        )
        root = picture(chart(series=many), width=358, height=200)
        (shown,) = root.all("svg")
        height = float((shown.attributes["viewbox"] or "").split()[3])
        assert height > 200
        for number in range(14):
            assert f"the {number} of" in root.text

    def test_charts_of_one_figure_are_equally_high(self) -> None:
        crowd = tuple(
            Series(
                name=f"method {number}",
                style=Style(colour=0, mark="circle"),
                points=(Point(x=1 + 0.01 * number, y=0.5),),
                line="none",
            )
            for number in range(16)
        )
        drawn = draw(
            [("a", chart(names="inside")), ("b", chart(series=crowd, names="inside"))], 358, 150
        )
        heights = {read(one).all("svg")[0].attributes["viewbox"] for one in drawn}
        assert len(heights) == 1
        assert heights != {"0 0 358 150"}

    def test_each_chart_is_drawn_for_a_wide_screen_and_for_a_phone(self) -> None:
        root = read(join(both_sizes([("x", chart())])))
        (wide,), (narrow,) = root.with_class("wide"), root.with_class("narrow")
        assert (wide.all("svg")[0].attributes["viewbox"] or "").startswith("0 0 700 ")
        assert (narrow.all("svg")[0].attributes["viewbox"] or "").startswith("0 0 358 ")


class TestClouds:
    def test_one_scale_in_both_directions_and_points_outside_left_out(self) -> None:
        cloud = Cloud(
            points=((0.0, 0.0), (1.0, 0.5), (40.0, 0.0)),
            colour=0,
            name="centre",
            style=Style(colour=3, mark="circle"),
        )
        assert cloud.centre == pytest.approx((41 / 3, 0.5 / 3))
        small = Cloud(
            points=((0.0, 0.0), (1.0, 0.5)),
            colour=0,
            name="centre",
            style=Style(colour=3, mark="circle"),
        )
        root = read(
            cloud_chart(
                [cloud, small],
                CloudFrame(x=(-0.5, 1.5), y=(-0.5, 1.0)),
                titles=("Component 1", "Component 2"),
                title="t",
                description="d",
                identifier="c",
            )
        )
        first, second = (n.attributes["d"] or "" for n in root.with_class("dots"))
        assert first.count("h0") == second.count("h0") == 2
        (x1, y1), (x2, y2) = (
            tuple(float(v) for v in re.findall(r"[\d.]+", place))
            for place in second.split("h0")[:2]
        )
        assert (x2 - x1) / 1.0 == pytest.approx((y1 - y2) / 0.5, rel=0.02)
        assert {"Component 1", "Component 2", "centre"} <= {n.text for n in root.all("text")}

    def test_a_frame_forgives_few_that_lie_far_out(self) -> None:
        frame = CloudFrame.around([(float(n % 10), float(n % 7)) for n in range(400)] + [(900, 0)])
        assert frame.x[1] < 12
        assert CloudFrame.around([]).holds((0, 0))

    def test_fewer_points_evenly(self) -> None:
        points = [(float(n), 0.0) for n in range(10)]
        assert thinned(points, 5) == tuple(points[::2])
        assert thinned(points, 10) == tuple(points)


@pytest.mark.parametrize("shape", MARKS)
def test_every_mark_is_its_own_shape(shape: str) -> None:
    drawn = {name: mark(Style(colour=0, mark=name), 0, 0) for name in MARKS}
    assert len(set(drawn.values())) == len(MARKS)
    node = read(mark(Style(colour=2, mark=shape), 5, 5, text="tip")).every()[0]
    assert "c2" in (node.attributes["class"] or "")
    assert node.all("title")[0].text == "tip"


def test_panels_fit_a_phone() -> None:
    assert PANEL <= 390 - 40
