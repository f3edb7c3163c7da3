"""Axes hold what they show, with round ticks, and figures are written as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_privsyn.errors import ConfigError
from flower_privsyn.report.scales import (
    NOTHING,
    Scale,
    bytes_text,
    counted,
    epsilon_text,
    finite,
    fixed,
    linear_scale,
    log_scale,
    log_tick_texts,
    number,
    scale_of,
    seconds_text,
    tick_texts,
    time_text,
)

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"

figures = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=6)
positive = st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=6)


def leading(value: float) -> float:
    """The digits of a number without its power of ten."""
    return float(f"{abs(value):.9e}".split("e")[0])


class TestAxes:
    @given(figures, st.booleans())
    def test_a_linear_axis_holds_its_figures(self, values: list[float], zero: bool) -> None:
        scale = linear_scale(values, from_zero=zero)
        assert all(-1e-9 <= scale.share(value) <= 1 + 1e-9 for value in values)
        assert 2 <= len(scale.ticks) <= 13
        steps = [b - a for a, b in zip(scale.ticks, scale.ticks[1:], strict=False)]
        assert leading(steps[0]) in (1, 2, 5)
        assert all(step == pytest.approx(steps[0], rel=1e-4) for step in steps)
        if zero:
            assert 0.0 in scale.ticks
            assert scale.low == min(0.0, *values) or scale.low <= min(values)

    @given(positive)
    def test_a_logarithmic_axis_holds_its_figures(self, values: list[float]) -> None:
        scale = log_scale(values)
        assert all(0 <= scale.share(value) <= 1 for value in values)
        assert 1 <= len(scale.ticks) <= 6
        assert all(leading(tick) in (1, 2, 5) for tick in scale.ticks)
        assert list(scale.ticks) == sorted(set(scale.ticks))

    def test_equal_ratios_are_equal_lengths(self) -> None:
        scale = log_scale([1, 100])
        assert scale.share(100) - scale.share(10) == pytest.approx(scale.share(10) - scale.share(1))

    def test_budgets_are_logarithmic_where_they_span(self) -> None:
        assert scale_of([1.0, 7.0]).kind == "log"
        assert scale_of([1.0, 2.0]).kind == "linear"
        assert scale_of([0.0, 7.0]).kind == "linear"
        assert scale_of([1.0, 7.0]).ticks == (1, 2, 5, 10)

    def test_rounds_have_whole_ticks(self) -> None:
        assert linear_scale([0, 2], from_zero=True, whole=True).ticks == (0, 1, 2)

    def test_refusals(self) -> None:
        with pytest.raises(ConfigError, match="above 0"):
            log_scale([0.0, 1.0])
        with pytest.raises(ConfigError, match="run upwards, got 1 to 1"):
            Scale(kind="linear", low=1, high=1, ticks=())
        with pytest.raises(ConfigError, match="begin above 0, got -1"):
            Scale(kind="log", low=-1, high=1, ticks=())


class TestFigures:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, NOTHING),
            (math.nan, NOTHING),
            (math.inf, "∞"),
            (0.0, "0"),
            (3e-5, f"3 {TIMES} 10⁻⁵"),
            (4.163e-5, f"4.16 {TIMES} 10⁻⁵"),
            (-3e-5, f"{MINUS}3 {TIMES} 10⁻⁵"),
            (0.00678, "0.006780"),
            (15.204966, "15.20"),
            (-12.5, f"{MINUS}12.50"),
            (123456.7, "123,457"),
            (1e13, f"1 {TIMES} 10¹³"),
        ],
    )
    def test_numbers(self, value: float | None, text: str) -> None:
        assert number(value) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [(1.0, "1"), (7.58, "7.58"), (None, "∞"), (math.inf, "∞"), (0.0, "0"), (0.99999, "1")],
    )
    def test_epsilons(self, value: float | None, text: str) -> None:
        assert epsilon_text(value) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, NOTHING),
            (0, "0 B"),
            (999, "999 B"),
            (999_700, "1 MB"),
            (32_963, "33 kB"),
            (3_267, "3.27 kB"),
            (240e6, "240 MB"),
            (2.4e12, "2.4 TB"),
        ],
    )
    def test_amounts_of_data(self, value: float | None, text: str) -> None:
        assert bytes_text(value) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.052, "0.052 s"), (9, "9 s"), (119, "119 s"), (1390, "23 min"), (9000, "2.5 h")],
    )
    def test_times(self, value: float, text: str) -> None:
        assert seconds_text(value) == text

    def test_ticks_of_one_axis_have_equal_decimals(self) -> None:
        assert tick_texts([0.24, 0.26, 0.3]) == ["0.24", "0.26", "0.30"]
        assert tick_texts([0.0, 0.5, 1.0]) == ["0", "0.5", "1.0"]
        assert log_tick_texts([0.5, 1, 20]) == ["0.5", "1", "20"]

    def test_other_words(self) -> None:
        assert counted(1, "round") == "1 round"
        assert counted(1200, "round") == "1,200 rounds"
        assert time_text("2026-11-20T14:35:36+00:00") == "2026-11-20 14:35"
        assert time_text(None) == "None"
        assert fixed(-0.12345, 3) == f"{MINUS}0.123"
        assert finite(True) is None
        assert finite("3") is None
        assert finite(math.nan) is None
        assert finite(3) == 3.0
