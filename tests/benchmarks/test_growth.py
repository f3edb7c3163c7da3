"""What `python -m benchmarks.growth` measures is a whole run, of every size it is given."""

from __future__ import annotations

import pytest

from benchmarks import growth


@pytest.mark.parametrize("method", growth.METHODS)
def test_a_run_of_few(method: str) -> None:
    one = growth.measured(method, users=30, nodes=2, candidates=20, rounds=3)
    assert 0 < one["round"] < one["all"]
    assert one["gigabytes"] > 0.05


def test_products() -> None:
    votes, similarities = (growth.products(name, 133_000, 18_000) for name in growth.METHODS)
    assert 0 < similarities < votes / 20
