"""Every method does what it did, to the bit, on the kind of machine it was recorded on.

Elsewhere it asks and spends the same, its numbers to nine digits or nine places.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_runs import RETIRED, RUNS, STORED, machine, run

RECORDED: dict[str, Any] = json.loads(STORED.read_text("utf-8"))


def test_every_run_is_recorded() -> None:
    assert set(RECORDED["runs"]) == set(RUNS)


def differences(found: Any, recorded: Any, place: str = "") -> list[str]:
    """Where two values that came from JSON differ; floats by 1e-9 and more."""
    if isinstance(found, float) and isinstance(recorded, float):
        same = math.isclose(found, recorded, rel_tol=1e-9, abs_tol=1e-9)
    elif isinstance(found, dict) and isinstance(recorded, dict) and set(found) == set(recorded):
        return [
            line
            for key in recorded
            for line in differences(found[key], recorded[key], f"{place}.{key}".strip("."))
        ]
    elif isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        return [
            line
            for index, value in enumerate(recorded)
            for line in differences(found[index], value, f"{place}.{index}".strip("."))
        ]
    else:
        same = type(found) is type(recorded) and found == recorded
    return [] if same else [f"{place}: {found!r}, recorded {recorded!r}"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str, tmp_path: Path) -> None:
    found = run(name, tmp_path)
    recorded = RECORDED["runs"][name]
    recorded["ledger"] = [
        {key: line[key] for key in line if key not in RETIRED} for line in recorded["ledger"]
    ]
    # Who is asked what, and what it costs, is the same everywhere.
    assert found["messages"] == recorded["messages"]
    assert differences(found["ledger"], recorded["ledger"]) == []
    assert set(found["releases"]) == set(recorded["releases"])
    if RECORDED["machine"] == machine():
        assert found == recorded


def test_a_difference_is_found_in_its_place() -> None:
    recorded = {"a": [1, {"b": 0.1, "c": "x"}], "d": True}
    assert differences(recorded, recorded) == []
    assert differences({**recorded, "a": [1, {"b": 0.1 * (1 + 1e-15), "c": "x"}]}, recorded) == []
    for changed, place in (
        ({**recorded, "a": [1, {"b": 0.1 * (1 + 1e-6), "c": "x"}]}, "a.1.b"),
        ({**recorded, "a": [1, {"b": 0.1, "c": "y"}]}, "a.1.c"),
        ({**recorded, "a": [1.0, recorded["a"][1]]}, "a.0"),  # type: ignore[index]
        ({**recorded, "a": [1]}, "a"),
        ({"a": recorded["a"]}, ""),
        ({**recorded, "d": 1}, "d"),
    ):
        assert [line.split(":")[0] for line in differences(changed, recorded)] == [place]
