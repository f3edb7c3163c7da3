"""`python -m benchmarks.all` says what each work takes beside others, and who is not installed."""

from __future__ import annotations

import pytest

import benchmarks
from benchmarks import all as together
from benchmarks import joint_sketch, secure_aggregation, similarity, votes


def test_a_work_beside_others() -> None:
    done: list[str] = []
    ratios = benchmarks.compared(
        "adding",
        lambda: done.append("ours"),
        benchmarks.Other("floor", lambda: done.append("floor"), 0.5),
        benchmarks.Other("peer", None),
        repeats=2,
        unit="s",
    )
    # There and back again, and the first time counts for nobody.
    assert done == ["floor", "ours", "ours", "floor", "floor", "ours"]
    assert [(len(one.ours), len(one.theirs)) for one in ratios] == [(2, 2), (2, 0)]
    assert "| 0.5 |" in ratios[0].row()
    assert "not installed" in ratios[1].row()


def test_least_and_median() -> None:
    one = benchmarks.Ratio(
        part="votes", other=benchmarks.Other("sgemm", None), ours=[2, 3, 9], theirs=[4, 3, 3]
    )
    assert one.row() == "| votes | sgemm |  | 0.50 | 1.00 | 3 CPU s |"


@pytest.mark.parametrize(
    "ratios",
    [
        lambda: votes.measure(users=30, candidates=16),
        lambda: similarity.measure(users=30, candidates=20),
        lambda: joint_sketch.measure(users=30),
        lambda: secure_aggregation.measure(nodes=(16,), numbers=8),
    ],
    ids=["votes", "similarity", "joint_sketch", "secure_aggregation"],
)
def test_small_benchmarks(ratios: object) -> None:
    assert callable(ratios)
    for one in ratios():
        assert min(one.ours) > 0
        assert not one.theirs or min(one.theirs) > 0


def test_one_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(SystemExit, match="nothing"):
        together.main(["nothing"])
    assert benchmarks.machine().partition(" load")[0] in capsys.readouterr().out
