"""The figures for 10^8 devices: at a small size, where they are known."""

from __future__ import annotations

from pathlib import Path

from research import scale


def test_coins_cohorts_and_the_superlink(tmp_path: Path) -> None:
    assert "at most 10 times" in scale.asked(devices=100, rounds=10, rate=1.0)
    # t = 14 of 16 nodes, 5 of them colluding: two sums of all 16 have sqrt(2 * 16 / 9) sigma.
    assert scale.cohorts(0.0, number=2, nodes=16) == "0% lost: 2.0 of 2 sums, 32 nodes, 1.9 sigma"
    assert scale.ledger(tmp_path, answers=1, multiplier=5.495).endswith("epsilon 1.00")
    for folder in (None, tmp_path):
        assert " bytes a node; a heartbeat " in scale.superlink(folder, 20)
