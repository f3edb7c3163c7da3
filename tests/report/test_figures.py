"""Marks stand where their figures are, names keep apart, and numbers are written for people."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from flower_privsyn.report.figures import MARKS, PANEL, Chart, Level, Series, charts
from flower_privsyn.report.numbers import (
    NOTHING,
    Look,
    bytes_text,
    epsilon_text,
    finite,
    number,
    seconds_text,
    shortened,
)
from flower_privsyn.report.svg import drawing
from tests.support.pages import Node, read, tips

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def picture(**changes: object) -> Node:
    marks = list(MARKS)
    values: dict[str, object] = {
        "title": "Quality",
        "description": "It rises.",
        "x": "epsilon",
        "x_title": "ε",
        "y_title": "share",
        "series": tuple(
            Series(
                name=f"method {n}",
                look=Look(n % 8, marks[n % 8]),
                x=[1, 100],
                y=[0.2 + n / 1000, 0.8],
                errors=[0.1, None],
                tips=[f"{n} low", f"{n} high"],
            )
            for n in range(12)
        ),
        "levels": (Level(name="a floor of two words", y=0.1, error=0.05, tip="floor"),),
        **changes,
    }
    with drawing():
        drawn = charts([Chart(**values)], "x", wide=PANEL)  # type: ignore[arg-type]
    return read("".join(drawn))


def height_of(root: Node, words: str) -> float:
    """Where a mark with a tooltip, or a text, stands; downwards."""
    for node in root.all("path") + root.all("text"):
        if node.text == words:
            moved = re.search(r"translate\(\S+ (\S+)\)", node.attributes.get("transform") or "")
            return float(moved[1] if moved else node.attributes["y"] or "nan")
    raise AssertionError(f"no {words}")


def test_marks_stand_at_their_figures() -> None:
    root = picture()
    unit = (height_of(root, "0.2") - height_of(root, "0.6")) / 0.4
    assert height_of(root, "0 low") - height_of(root, "0 high") == pytest.approx(
        0.6 * unit, abs=0.1
    )
    assert height_of(root, "0 low") - height_of(root, "5 low") == pytest.approx(
        0.005 * unit, abs=0.1
    )
    assert len(tips(root)) == 25
    ticks = [n.text for n in root.all("text") if n.attributes.get("text-anchor") == "middle"]
    assert ticks == ["1", "100"]


def test_names_keep_apart_and_nothing_leaves_the_picture() -> None:
    root = picture()
    height = float((root.all("svg")[0].attributes["viewbox"] or "").split()[3])
    names = [n for n in root.all("text") if re.match("method|a floor|of two|words", n.text)]
    places = sorted(height_of(root, n.text) for n in names)
    assert len(places) >= 13
    assert all(after - before > 13 for before, after in itertools.pairwise(places))
    assert places[0] > 10
    assert places[-1] < height


def test_what_is_written_is_text_and_no_formula() -> None:
    root = picture(series=(), levels=(Level(name="$x^2$<b>", y=1, tip="$t"),))
    assert "$x^2$<b>" in [n.text for n in root.all("text")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, NOTHING),
        (math.inf, "∞"),
        (0.0, "0"),
        (-3e-5, f"{MINUS}3 {TIMES} 10⁻⁵"),
        (0.00678, "0.006780"),
        (15.204966, "15.20"),
        (123456.7, "123,457"),
        (1e13, f"1 {TIMES} 10¹³"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_amounts() -> None:
    assert [epsilon_text(v) for v in (1.0, 7.58, None, 0.0)] == ["1", "7.58", "∞", "0"]
    sizes = (None, 999, 999_700, 32_963, 2.4e12)
    assert [bytes_text(v) for v in sizes] == [NOTHING, "999 B", "1 MB", "33 kB", "2.4 TB"]
    assert [seconds_text(v) for v in (0.052, 119, 1390)] == ["0.052 s", "119 s", "23 min"]
    assert [finite(v) for v in (True, "3", math.nan, 3)] == [None, None, None, 3.0]
    assert [shortened(v, 12) for v in ("one two three four", "x" * 30)] == [
        "one two …",
        "x" * 12 + " …",
    ]
