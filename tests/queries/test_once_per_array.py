"""What is remembered about an array is remembered only while it cannot change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from flower_privsyn.queries import (
    MeanSimilarity,
    NearestNeighborHistogram,
    Query,
)
from flower_privsyn.queries.query import Cohort, once_per_array


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


@pytest.mark.parametrize(
    "query",
    [
        NearestNeighborHistogram(max_samples=3),
        MeanSimilarity(centre="all"),
    ],
)
def test_answers_are_the_same_whether_candidates_are_frozen_or_not(query: Query) -> None:
    rng = np.random.default_rng(4)
    cohort = Cohort(
        rng.standard_normal((60, 8)).astype(np.float32), np.repeat(np.arange(20), 3), 20
    )
    candidates = rng.standard_normal((30, 8)).astype(np.float32)
    expected = query.answer(cohort, {"candidates": candidates})
    shared = frozen(candidates)
    for _ in range(2):
        query.check({"candidates": shared}, dimension=8)
        np.testing.assert_array_equal(query.answer(cohort, {"candidates": shared}), expected)
    # The next round's candidates are others, whatever was remembered of these.
    other = frozen(candidates[::-1])
    np.testing.assert_array_equal(
        query.answer(cohort, {"candidates": other}),
        query.answer(cohort, {"candidates": candidates[::-1].copy()}),
    )
    broken = frozen(np.where(np.arange(8) == 3, np.nan, candidates))
    for _ in range(2):
        with pytest.raises(ValueError, match="finite"):
            query.check({"candidates": broken}, dimension=8)


def test_answers_are_the_same_whether_a_root_is_frozen_or_not() -> None:
    rng = np.random.default_rng(5)
    cohort = Cohort(
        rng.standard_normal((60, 8)).astype(np.float32), np.repeat(np.arange(20), 3), 20
    )
    query = MeanSimilarity(centre="none", answer_space="span")
    (root,) = query.broadcast(rng.standard_normal((30, 8)).astype(np.float32)).values()
    expected = query.answer(cohort, {"root": root})
    shared = frozen(root)
    for _ in range(2):
        query.check({"root": shared}, dimension=8)
        np.testing.assert_array_equal(query.answer(cohort, {"root": shared}), expected)
    changed = root.copy()
    changed[0] += 1
    np.testing.assert_array_equal(
        query.answer(cohort, {"root": frozen(changed)}), query.answer(cohort, {"root": changed})
    )
