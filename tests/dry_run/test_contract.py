"""What `privsyn check` promises of every strategy, held against runs of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.dry_run import Report, check_plan, check_setup
from flower_privsyn.dry_run.people import People
from flower_privsyn.errors import PrivsynError
from tests.support import golden_runs
from tests.support.checked import stops

pytestmark = pytest.mark.usefixtures("few_weights")

EVERYBODY = len(golden_runs.everybody())


def checked(strategy: Any) -> Report:
    """What `privsyn check` says of a strategy whose users are those of the golden runs."""
    people = People(
        users=EVERYBODY,
        held_out=0,
        writing=EVERYBODY - 1,
        documents=EVERYBODY,
    )
    report = Report()
    plan = check_plan(strategy.method, strategy.config, people, report=report)
    if plan is not None and report.ready:
        check_setup(strategy.method, strategy.config, plan, people, report=report)
    return report


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


#: A run of each way in which rounds carry something else: what counts them is the run's own.
NAMES = [
    "private-evolution",
    "aug-pe",
    "popri fred",
    "fred",
    "ctcl",
    "hybrid",
    "public-mid-training",
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_ready_runs_and_carries_what_was_said(name: str, tmp_path: Path) -> None:
    strategy = golden_runs.MAKERS[name](tmp_path)
    before = written(tmp_path)
    report = checked(strategy)
    assert report.ready, report.of_level("stops")
    assert written(tmp_path) == before  # neither a run nor a ledger
    strategy = golden_runs.MAKERS[name](tmp_path)
    with golden_runs.fixed():
        strategy.start(golden_runs.RUNS[name][1](tmp_path, golden_runs.Recording()))
    for key in ("bytes_down", "bytes_up"):
        planned = report.figures[f"{key}_by_round"]
        counted = [line[key] for line in strategy.run.metrics()]
        if name.startswith("popri"):  # not every response can be used
            assert all(most >= one for most, one in zip(planned, counted, strict=True))
        else:
            assert planned == counted, key


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
