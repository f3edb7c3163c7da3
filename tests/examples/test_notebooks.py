"""The notebooks run from outside the package, and say what they say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "flower_privsyn" / "examples" / "notebooks"


def code(name: str) -> list[str]:
    """The code cells of a notebook."""
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def counts(printed: str) -> list[tuple[float, int]]:
    """Released and true counts in what the second notebook prints."""
    rows = re.findall(r"^\w+ +(-?\d+\.\d) +(\d+)$", printed, re.MULTILINE)
    return [(float(released), int(true)) for released, true in rows]


def test_the_method_runs_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    module = ModuleType("words_of_people")
    monkeypatch.setitem(sys.modules, "words_of_people", module)
    for cell in code("write_a_method"):
        exec(compile(cell, "write_a_method.ipynb", "exec"), module.__dict__)
    figures = counts(capsys.readouterr().out)
    std = 2 * module.__dict__["run"].charged[0]["noise_multiplier"]
    assert len(figures) == 10
    assert all(-5 * std < released < true + 5 * std for released, true in figures)
    assert max(figures)[1] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_data", "write_a_method"])
def test_a_kernel_executes_it(name: str, tmp_path: Path) -> None:
    from scripts.execute_notebooks import execute, printed

    shown = printed(execute(FOLDER / f"{name}.ipynb", tmp_path.resolve()))
    assert "Traceback" not in shown
    if name == "own_data":
        assert "600 people, epsilon 1.00" in shown
        assert "100 texts" in shown
    else:
        assert len(counts(shown)) == 10
