"""Bars of what methods close are of what was measured at one place, and say what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from research.gap_picture import bars_of
from tests.support.compared import CELLS, cell

PLACE: dict[str, Any] = {"data": "abstracts", "users": 3000, "epsilon": 1.0}
ONCE = {"rounds": 1, "bytes_up": 98_000}
OFTEN = {"rounds": 64, "bytes_up": 656_000}
ALL = [
    *(one if one["method"] != "hybrid-10" else {**one, "costs": OFTEN} for one in CELLS),
    cell("joint-sketch", 0, 0.31, costs=ONCE),
    cell("joint-sketch", 0, 0.39, costs=ONCE, epsilon=7.0),
    cell("pre-text", 0, 0.21, costs=OFTEN, distilled={"next_token_accuracy": 0.25}),
    cell("aug-pe", 0, 0.15, costs=OFTEN, distilled={"next_token_accuracy": 0.19}),
    cell("distill-public", 0, 0.22, epsilon=0.0),
]


def test_what_asks_is_above_what_asks_nobody_and_the_best_is_first() -> None:
    bars = bars_of(ALL, **PLACE)
    assert [bar.method for bar in bars] == [
        "joint-sketch",
        "hybrid-10",
        "pre-text",
        "aug-pe",
        "distill-public",
    ]
    assert [bar.words for bar in bars] == [
        "55 %: 98 kB, once",
        "40 %: 656 kB, 64 rounds",
        "25 %: 656 kB, 64 rounds",  # of the taught student, which is above the other
        "-5 %: 656 kB, 64 rounds",
        "10 %",
    ]
    assert bars[1].error == pytest.approx(0.1)
    assert bars[0].error is None
    assert bars[2].gap == pytest.approx(0.05)
    assert bars[4].title == "public text, distilled"
    assert len({bar.shade for bar in bars}) == 3
