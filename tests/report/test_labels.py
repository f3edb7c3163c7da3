"""Names keep apart, stay near what they name, and say when there is no room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from flower_privsyn.report.labels import Box, place, spread, text_width, wrap

FRAME = Box(0, 0, 300, 200)

wishes = st.lists(st.tuples(st.floats(-50, 250), st.floats(5, 30)), min_size=1, max_size=8).map(
    lambda pairs: ([a for a, _ in pairs], [b for _, b in pairs])
)


class TestAColumn:
    @given(wishes)
    def test_keeps_apart_in_the_order_of_the_wishes(
        self, column: tuple[list[float], list[float]]
    ) -> None:
        wanted, heights = column
        found = spread(wanted, heights, 0, 200)
        if sum(heights) > 200:
            assert found is None
            return
        assert found is not None
        order = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
        edge = 0.0
        for index in order:
            assert found[index] - heights[index] / 2 >= edge - 1e-6
            edge = found[index] + heights[index] / 2
        assert edge <= 200 + 1e-6

    @pytest.mark.parametrize("seed", range(12))
    def test_moves_as_little_as_possible(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        count = int(random.integers(2, 7))
        wanted = np.sort(random.uniform(-20, 160, count))
        heights = random.uniform(10, 24, count)
        found = spread(list(wanted), list(heights), 0, 170)
        assert found is not None
        gaps = [
            {
                "type": "ineq",
                "fun": lambda at, i=i: at[i + 1] - at[i] - (heights[i] + heights[i + 1]) / 2,
            }
            for i in range(count - 1)
        ]
        start = np.cumsum(heights) - heights / 2
        best = minimize(
            lambda at: ((at - wanted) ** 2).sum(),
            start,
            constraints=gaps,
            bounds=[(h / 2, 170 - h / 2) for h in heights],
            method="SLSQP",
        )
        assert ((np.array(found) - wanted) ** 2).sum() <= best.fun + 1e-3

    def test_leaves_alone_what_does_not_collide(self) -> None:
        assert spread([30.0, 100.0, 60.0], [10.0, 10.0, 10.0], 0, 200) == [30.0, 100.0, 60.0]


class TestPlaces:
    @given(
        st.lists(
            st.lists(
                st.tuples(st.integers(-20, 300), st.integers(-20, 200), st.integers(5, 90)),
                min_size=1,
                max_size=6,
            ),
            min_size=1,
            max_size=6,
        )
    )
    @settings(max_examples=60)
    def test_clean_means_clean(self, places: list[list[tuple[int, int, int]]]) -> None:
        choices = [[Box(x, y, x + w, y + 15) for x, y, w in options] for options in places]
        mark = Box(140, 90, 150, 100)
        chosen, clean = place(choices, [(mark, 1.0)], FRAME)
        boxes = [options[choice] for options, choice in zip(choices, chosen, strict=True)]
        covered = any(
            a.overlap(b) > 0 for number, a in enumerate(boxes) for b in boxes[number + 1 :]
        )
        outside = any(box.outside(FRAME) > 1e-6 for box in boxes)
        assert clean == (not covered and not outside and not any(b.overlap(mark) for b in boxes))

    def test_two_that_want_the_same_place_share_the_two_that_there_are(self) -> None:
        both = [Box(10, 10, 60, 25), Box(10, 40, 60, 55)]
        chosen, clean = place([both, both], [], FRAME)
        assert clean
        assert sorted(chosen) == [0, 1]

    def test_the_first_place_wins_where_nothing_is_in_the_way(self) -> None:
        assert place([[Box(10, 10, 60, 25), Box(10, 40, 60, 55)]], [], FRAME) == ([0], True)

    def test_what_may_be_covered_is_covered_last(self) -> None:
        options = [Box(10, 10, 60, 25), Box(10, 40, 60, 55)]
        assert place([options], [(Box(0, 12, 300, 14), 0.5)], FRAME) == ([1], True)
        assert place([options[:1]], [(Box(0, 12, 300, 14), 0.5)], FRAME) == ([0], True)


class TestText:
    def test_lines_keep_to_the_width_and_lose_no_word(self) -> None:
        text = "Fine-tuned on private text without any privacy"
        lines = wrap(text, 80, 12)
        assert " ".join(lines) == text
        assert len(lines) > 2
        assert all(text_width(line, 12) <= 80 or " " not in line for line in lines)

    def test_nothing_is_one_line(self) -> None:
        assert wrap("", 80, 12) == [""]
