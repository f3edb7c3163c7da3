"""The page that shows how to add a method: its code runs as it stands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from flower_privsyn.catalogue import strategy_named

PAGE = (Path(__file__).parents[2] / "docs" / "add_a_method.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_runs_from_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    module = ModuleType("my_package")
    monkeypatch.setitem(sys.modules, "my_package", module)
    for block in BLOCKS:
        exec(compile(block, "docs/add_a_method.md", "exec"), module.__dict__)
    state = json.loads((tmp_path / "lengths" / "state.json").read_text("utf-8"))
    people = module.__dict__["people"]
    wanted = np.bincount([min(len(text) // 100, 7) for text in people.texts], minlength=8)
    histogram = np.array(state["summary"]["histogram"])
    assert state["status"] == "finished"
    # Two releases that were averaged; the clip norm is four, and nobody has more than one text.
    std = 4 * module.__dict__["run"].charged[0]["noise_multiplier"] / np.sqrt(2)
    assert np.abs(histogram - wanted).max() < 5 * std
    assert strategy_named("my_package:PrivateLengths") is module.__dict__["PrivateLengths"]
    lines = (tmp_path / "lengths" / "ledger.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[-1])["epsilon_release"] == pytest.approx(2.0, rel=1e-3)
