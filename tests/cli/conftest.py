"""A finished run, written without Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.run import RunDirectory
from tests.support.ledgers import write_chain


def release(number: int, **values: Any) -> dict[str, Any]:
    return {
        "event": "release",
        "round": number,
        "num_users": 300,
        "delta": 3e-6,
        "epsilon_release": 1.25 * number,
        "epsilon_known_cohorts": 2.5 * number,
        **values,
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", config={"epsilon": 7.58}, strategy="POPri")
    lines = [
        {"event": "opened", "delta": 3e-6, "epsilon_budget": 7.58},
        {"event": "started", "round": 1},
        release(1),
        {"event": "started", "round": 2},
        release(2),
    ]
    write_chain(run.ledger_file, *lines, torn='{"torn')
    run.write_synthetic(
        [{"text": f"[b]text {n}[/b]", "round": 2, "parent": None, "source": "x"} for n in range(5)]
    )
    for number in (0, 1, 2):
        run.finish_round(number)
    run.mark_running()
    run.mark_finished()
    run.unlock()
    return run
