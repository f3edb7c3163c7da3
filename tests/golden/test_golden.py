"""Every method does what it did: its messages, ledger, texts and releases.

To the bit on the kinds of machine that were recorded; on every other one the same texts and ledger,
and the same numbers but for what another order of additions makes of them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.golden_runs import RUNS, STORED, machine, run

RECORDED: dict[str, Any] = json.loads(STORED.read_text("utf-8"))


def test_every_run_is_recorded() -> None:
    assert set(RECORDED) == set(RUNS)


def differences(found: Any, recorded: Any, place: str = "", within: float = 1e-9) -> list[str]:
    """Where two values that came from JSON differ; floats by more than a share of them."""
    if isinstance(found, float) and isinstance(recorded, float):
        same = math.isclose(found, recorded, rel_tol=within, abs_tol=within)
    elif isinstance(found, dict) and isinstance(recorded, dict) and set(found) == set(recorded):
        return [
            line
            for key in recorded
            for line in differences(
                found[key], recorded[key], f"{place}.{key}".strip("."), within=within
            )
        ]
    elif isinstance(found, list) and isinstance(recorded, list) and len(found) == len(recorded):
        return [
            line
            for index, value in enumerate(recorded)
            for line in differences(
                found[index], value, f"{place}.{index}".strip("."), within=within
            )
        ]
    else:
        same = type(found) is type(recorded) and found == recorded
    return [] if same else [f"{place}: {found!r}, recorded {recorded!r}"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_what_it_was(name: str, tmp_path: Path) -> None:
    found, recorded = run(name, tmp_path), RECORDED[name]
    bits = recorded["bits"].get(machine())
    if bits is not None:
        assert found.pop("bits") == bits
    releases = found["releases"], recorded["releases"]
    assert differences(*releases, within=1e-4) == []
    for key in ("messages", "ledger", "texts"):
        assert differences(found[key], recorded[key], key) == []


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
