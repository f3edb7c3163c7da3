"""Every method does what it did, to the bit, on the kind of machine it was recorded on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_runs import RETIRED, RUNS, STORED, machine, run

RECORDED: dict[str, Any] = json.loads(STORED.read_text("utf-8"))


def test_every_run_is_recorded() -> None:
    assert set(RECORDED["runs"]) == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str, tmp_path: Path) -> None:
    found = run(name, tmp_path)
    recorded = RECORDED["runs"][name]
    recorded["ledger"] = [
        {key: line[key] for key in line if key not in RETIRED} for line in recorded["ledger"]
    ]
    # Who is asked what, and what it costs, is the same everywhere.
    assert found["messages"] == recorded["messages"]
    assert found["ledger"] == recorded["ledger"]
    assert set(found["releases"]) == set(recorded["releases"])
    if RECORDED["machine"] == machine():
        assert found == recorded
