"""No input, however hostile, adds more than the norm bound, and honest inputs keep theirs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import clip_rows as clip_in_place

HOSTILE = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=32),
    st.sampled_from([0.0, -0.0, 1e38, -1e38, 3.4e38, 1e-38, 1e-45, 1.0, 8.0, math.nan, math.inf]),
)


def clip_rows(values: np.ndarray, *, norm: float) -> np.ndarray:
    rows = values.astype(np.float64)
    clip_in_place(rows, norm=norm)
    return rows


def exact_square(row: np.ndarray) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in row), Fraction(0))


@settings(max_examples=300, deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
        elements=HOSTILE,
    ),
    norm=st.sampled_from([1e-3, 1.0, math.sqrt(8.0), 8.0, 1e6]),
)
def test_every_row_is_within_the_bound_in_exact_arithmetic(values: np.ndarray, norm: float) -> None:
    clipped = clip_rows(values, norm=norm)
    assert clipped.shape == values.shape
    assert np.isfinite(clipped).all()
    whole = (clipped == np.rint(clipped)).all(axis=1)
    for row, was_whole in zip(clipped, whole, strict=True):
        # Whole rows may meet an irrational bound, rounded, within half a unit in the last place.
        room = Fraction(1) + (Fraction(1, 2**51) if was_whole else 0)
        assert exact_square(row) <= Fraction(norm) ** 2 * room


@settings(max_examples=200, deadline=None)
@given(
    values=hnp.arrays(np.float64, (4, 5), elements=st.floats(-1e300, 1e300, allow_subnormal=False))
)
def test_large_rows_attain_the_bound_and_keep_their_direction(values: np.ndarray) -> None:
    clipped = clip_rows(values, norm=1.0)
    for before, after in zip(values, clipped, strict=True):
        scale = np.abs(before).max()
        if scale < 1.0:
            continue
        norm = np.linalg.norm(after)
        assert 0.999 <= norm <= 1.0 + 1e-15
        direction = before / scale
        cosine = (direction @ after) / (np.linalg.norm(direction) * norm)
        assert cosine > 1.0 - 1e-12


@settings(max_examples=200, deadline=None)
@given(
    others=hnp.arrays(np.float32, (3, 4), elements=HOSTILE),
    one=hnp.arrays(np.float32, (1, 4), elements=HOSTILE),
    another=hnp.arrays(np.float32, (1, 4), elements=HOSTILE),
)
def test_one_user_moves_the_sum_by_the_declared_sensitivity(
    others: np.ndarray, one: np.ndarray, another: np.ndarray
) -> None:
    norm = 2.5
    with_one = clip_rows(np.vstack([others, one]), norm=norm)
    with_another = clip_rows(np.vstack([others, another]), norm=norm)
    # The rows of the others do not depend on the one.
    assert (with_one[:3] == with_another[:3]).all()
    zero_out = with_one.sum(axis=0) - with_one[:3].sum(axis=0)
    replaced = with_one.sum(axis=0) - with_another.sum(axis=0)
    assert np.linalg.norm(zero_out) <= norm * (1 + 1e-12)
    assert np.linalg.norm(replaced) <= 2.0 * norm * (1 + 1e-12)


def test_broken_rows_become_zero_and_the_others_are_untouched() -> None:
    values = np.array([[math.nan, 1.0], [math.inf, 0.0], [0.6, 0.5], [-math.inf, math.nan]])
    clipped = clip_rows(values, norm=1.0)
    assert (clipped == [[0.0, 0.0], [0.0, 0.0], [0.6, 0.5], [0.0, 0.0]]).all()


@pytest.mark.parametrize("votes", [1, 3, 8])
def test_counts_up_to_the_bound_are_exact(votes: int) -> None:
    """Histograms survive to the last bit: one bin with all votes, and votes spread evenly."""
    one_bin, spread = np.eye(1, 10) * votes, np.ones((1, votes))
    assert (clip_rows(one_bin, norm=float(votes)) == one_bin).all()
    assert (clip_rows(spread, norm=math.sqrt(votes)) == spread).all()
    assert np.linalg.norm(clip_rows(one_bin * 2, norm=float(votes))) <= votes


def test_empty_matrices() -> None:
    assert clip_rows(np.zeros((0, 7)), norm=1.0).shape == (0, 7)
    assert clip_rows(np.zeros((7, 0)), norm=1.0).shape == (7, 0)


@pytest.mark.parametrize("norm", [0.0, -1.0, math.nan, math.inf, 1e31, "1", True])
def test_the_bound_is_checked(norm: object) -> None:
    with pytest.raises(ConfigError, match=r"norm must be a number between 1e-30 and 1e30, got"):
        clip_rows(np.ones((1, 1)), norm=norm)  # type: ignore[arg-type]
