"""What is remembered about an array is remembered only while it cannot change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flower_privsyn.queries.query import once_per_array


class Counted:
    """Sums an array, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0
        self.sum = once_per_array(self._sum)

    def _sum(self, array: npt.NDArray[np.float32]) -> float:
        self.calls += 1
        return float(array.sum())


def frozen(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    array = np.array(values, dtype=np.float32)
    array.flags.writeable = False
    return array


def test_the_same_frozen_array_is_looked_at_once() -> None:
    counted = Counted()
    array = frozen([1, 2, 3])
    assert [counted.sum(array) for _ in range(3)] == [6.0, 6.0, 6.0]
    assert counted.calls == 1
    assert counted.sum(frozen([1, 2, 3])) == 6.0
    assert counted.calls == 2


def test_an_array_that_may_change_is_looked_at_every_time() -> None:
    counted = Counted()
    array = np.ones(3, dtype=np.float32)
    assert counted.sum(array) == 3.0
    array[0] = 5.0
    assert counted.sum(array) == 7.0
    # A frozen view does not own what it shows.
    view = array[:]
    view.flags.writeable = False
    assert counted.sum(view) == 7.0
    array[0] = 1.0
    assert counted.sum(view) == 3.0
