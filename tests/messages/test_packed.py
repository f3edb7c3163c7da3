"""Sums as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.messages.wire import bytes_per_number, most_steps, pack_steps, unpack_steps
from flower_privsyn.privacy.mechanisms import STEPS


@pytest.mark.parametrize(
    ("bound", "width"),
    [(0.0, 1), (1.0, 4), (1.99, 4), (2.0, 5), (511.0, 5), (512.0, 6), (3000.0, 6), (2.0**17, 7)],
)
def test_as_few_bytes_as_the_bound_needs(bound: float, width: int) -> None:
    assert bytes_per_number(bound) == width
    largest = most_steps(bound)
    assert largest >= bound * STEPS
    ends = np.array([-largest, -1, 0, 1, largest])
    assert unpack_steps(pack_steps(ends, width=width)).tolist() == ends.tolist()
    with pytest.raises(ValueError, match="more than"):
        pack_steps(np.array([2 ** (8 * width - 1)]), width=width)


def test_any_whole_numbers_come_back() -> None:
    drawn = np.random.default_rng(0).integers(-(2**31), 2**31, size=1000)
    packed = pack_steps(drawn, width=4)
    assert packed.shape == (1000, 4)
    assert packed.nbytes == 4000
    assert packed[:, 0].tolist() == (drawn & 255).tolist()  # the lowest byte first
    assert unpack_steps(packed).tolist() == drawn.tolist()
    assert len(pack_steps(drawn[:0], width=4)) == 0


def test_a_sum_that_does_not_fit_is_not_told() -> None:
    with pytest.raises(ValueError, match="more than 4 bytes") as error:
        pack_steps(np.array([1, 2**31]), width=4)
    assert str(2**31) not in str(error.value)
