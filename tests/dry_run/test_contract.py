"""What `privsyn check` refuses, held against runs.

What it says of one that is ready: tests/strategies/test_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import PrivsynError
from tests.support import golden_runs
from tests.support.checked import checked, stops

pytestmark = pytest.mark.usefixtures("few_weights")


@pytest.mark.parametrize(
    ("make", "changes", "named"),
    [
        (golden_runs.evolution, {"num_candidates": 100}, "num-candidates"),
        (golden_runs.popri, {"prompt": "poem"}, "prompt"),
        (golden_runs.joint_sketch, {"least_row_tokens": 4000}, "least-row-tokens"),
        (golden_runs.joint_sketch, {"teacher": "./no"}, "./no"),
        (golden_runs.dp_ftrl, {"initial_model": "./no"}, "./no"),
        (golden_runs.dp_ftrl, {"epsilon": 0.5, "accept_noise": False}, "accept-noise"),
        (golden_runs.public_mid_training, {"training_batch_size": 500}, "training-batch-size"),
    ],
)
def test_what_cannot_run_is_refused_by_the_run_s_own_sentence(
    make: Callable[..., Any], changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    strategy = make(tmp_path, **changes)
    with pytest.raises(PrivsynError) as caught:
        strategy.start(golden_runs._by_training(tmp_path, golden_runs.Recording()))
    assert not any("ledger" in path.name for path in tmp_path.rglob("*"))
    report = checked(make(tmp_path, **{**changes, "run_dir": str(tmp_path / "other")}))
    assert list(stops(report).values()) == [str(caught.value).rstrip(".")]
    assert named in str(caught.value)
    assert not (tmp_path / "other").exists()
