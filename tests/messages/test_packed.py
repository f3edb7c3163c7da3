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
