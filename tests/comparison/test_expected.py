"""A budget of time: cheap cells first, none begun that will not end, and words on what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.comparison import APP, Cell, Comparison, People, make_plans
from flower_privsyn.comparison.expected import Budget, Expected
from flower_privsyn.comparison.plan import Plan
from flower_privsyn.comparison.table import markdown
from flower_privsyn.host.app import load_app

SECONDS = {"public-only": 60.0, "dp-ftrl": 300.0, "popri": 3000.0, "finetune-private": 120.0}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    file = tmp_path / "users.jsonl"
    rows = [{"client_id": f"user-{i}", "text": f"a text of user {i} " * 9} for i in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (plan,) = make_plans(
        app=load_app(APP),
        people=People.read([str(file)]),
        epsilons=[1.0],
        methods=list(SECONDS),
        seeds=2,
    )
    return plan


def taken(cell: Cell) -> dict[str, Any]:
    return {"wall_seconds": SECONDS[cell.method]}


def test_what_begins_with_a_student_comes_after_it_and_is_left_out_with_it(tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    rows = [{"client_id": f"user-{i}", "text": f"a text of user {i} " * 9} for i in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (plan,) = make_plans(
        app=load_app(APP),
        people=People.read([str(file)]),
        epsilons=[1.0],
        methods=["distill-public", "dp-ftrl-distilled"],
        configs=["from-distilled"],
        seeds=1,
    )
    seconds = {"distill-public": 800.0, "dp-ftrl-distilled": 100.0}
    expected = Expected(plan, lambda cell: {"wall_seconds": seconds[cell.method]})
    order = expected.cheap_first(plan.cells())
    assert [cell.method for cell in order] == ["distill-public", "dp-ftrl-distilled"]
    budget = Budget(300.0, expected, now=lambda: 0.0)
    first, second = order
    assert not budget.allows(first)
    assert not budget.allows(second, begins_with=first)
    assert budget.left_out[1] == (
        second,
        "it begins with the student of distill-public, which was left out",
    )
    other = Budget(300.0, expected, now=lambda: 0.0)
    assert other.allows(second, begins_with=first)


def test_what_took_time_here_takes_it_again(plan: Plan) -> None:
    expected = Expected(plan, taken)
    assert [expected.seconds(cell) for cell in plan.cells()[:2]] == [60.0, 120.0]
    order = [(cell.seed, cell.method) for cell in expected.cheap_first(plan.cells())]
    later = ["finetune-private", "dp-ftrl", "popri"]
    assert order == [
        (0, "public-only"),
        *((0, name) for name in later),
        *((1, name) for name in later),
    ]


def test_before_that_operations_are_counted(plan: Plan) -> None:
    """A model is fine-tuned in less time than a generator is trained in eight rounds."""
    expected = Expected(plan, lambda cell: {})
    seconds = {cell.method: expected.seconds(cell) for cell in plan.cells()}
    assert 0 < seconds["public-only"] < seconds["finetune-private"] < seconds["popri"]
    more = Expected(plan, lambda cell: taken(cell) if cell.method == "popri" else {})
    assert {more.seconds(cell) for cell in plan.cells() if cell.method == "popri"} == {3000.0}


def test_a_cell_that_would_not_end_in_time_is_left_out_and_said(plan: Plan) -> None:
    budget = Budget(600.0, Expected(plan, taken), now=lambda: 7.0)
    allowed = [cell.method for cell in plan.cells() if cell.seed == 0 and budget.allows(cell)]
    assert allowed == ["public-only", "finetune-private", "dp-ftrl"]
    ((cell, sentence),) = budget.left_out
    assert cell.method == "popri"
    assert sentence == "it takes about 50.0 min, and 10.0 min of the budget were left"


def test_a_comparison_runs_what_fits_and_goes_on_later(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = Comparison(plan, tmp_path / "out")
    run: list[str] = []

    def outcome(cell: Cell, data: Path, follower: Any, *, figures: bool) -> dict[str, Any]:
        run.append(cell.name)
        return {"quality": {"next_token_accuracy": 0.2}}

    monkeypatch.setattr(comparison, "_outcome", outcome)
    monkeypatch.setattr(Expected, "_count", lambda self, cell: SECONDS[cell.method])
    said: list[str] = []
    begun: dict[str, Any] = {"follower": None, "say": said.append}
    document = comparison.run(**begun, budget_minutes=6.0)
    assert run == [
        "public-only-eps-0-seed-0",
        "finetune-private-eps-inf-seed-0",
        "dp-ftrl-eps-1-seed-0",
        "finetune-private-eps-inf-seed-1",
        "dp-ftrl-eps-1-seed-1",
    ]
    assert [line.partition(", and")[0] for line in said if line.startswith("left out")] == [
        f"left out: POPri, epsilon 1, seed {seed}: it takes about 50.0 min" for seed in (0, 1)
    ]
    assert document["finished"] is None
    page = markdown(document)
    assert "Not run, for want of time:" in page
    assert "- POPri, ε = 1, seed 1: it takes about 50.0 min" in page
    again = comparison.run(**begun)
    assert [name.split("-")[0] for name in run[5:]] == ["popri", "popri"]
    assert "Not run" not in markdown(again)


def test_a_budget_is_a_number_of_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--data", "x.jsonl", "--epsilon", "1", "--budget-minutes", "0"]
    assert main(words) == 2
    assert "--budget-minutes must be a number above 0, got 0" in capsys.readouterr().err
