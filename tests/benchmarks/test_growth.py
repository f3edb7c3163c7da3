"""What `python -m benchmarks.growth` measures is a whole run, of every size it is given."""

from __future__ import annotations

from benchmarks import growth


def test_a_run_of_few() -> None:
    rounds = growth.a_run(users=30, nodes=2, candidates=20, rounds=3)
    assert rounds.shape == (3, 2)
    assert (rounds > 0).all()


def test_few_rows() -> None:
    cpu, clock = growth.public_text(200)
    assert cpu > 0
    assert clock > 0
