"""What is remembered about an array is remembered only while it cannot change."""

from __future__ import annotations

from typing import Any

import numpy as np

from flower_privsyn.queries.query import once_per_array


def test_an_array_that_may_change_is_looked_at_every_time() -> None:
    total = once_per_array(np.sum)
    array = np.ones(3, dtype=np.float32)
    assert total(array) == 3.0
    array[0] = 5.0
    assert total(array) == 7.0
    # A frozen view does not own what it shows.
    view = array[:]
    view.flags.writeable = False
    assert total(view) == 7.0
    array[0] = 1.0
    assert total(view) == 3.0


def test_an_array_that_is_gone_is_forgotten() -> None:
    total = once_per_array(np.sum)

    def frozen(value: int) -> np.ndarray[Any, Any]:
        array = np.full(3, value)
        array.flags.writeable = False
        return array

    for value in range(100):  # at the place of the one before
        assert total(frozen(value)) == 3 * value
