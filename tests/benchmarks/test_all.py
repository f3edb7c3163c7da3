"""`python -m benchmarks.all` leaves no benchmark out, and says what it left out of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks import Ratio
from benchmarks import all as together

FOLDER = Path(benchmarks.__file__).parent
#: Parts that benchmarks are made of.
PARTS = {"__init__", "all", "other_frameworks"}


def test_every_module_is_run() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py")}
    assert modules - PARTS == set(together.BENCHMARKS)


@pytest.mark.parametrize("name", [*together.BENCHMARKS, "all"])
def test_every_benchmark_has_the_same_entrance(name: str) -> None:
    # Read, not imported: some load every model library there is.
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    (main,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    assert ast.unparse(main.args) == "given: Sequence[str] | None=None"
    assert main.returns is not None
    assert ast.unparse(main.returns) == "list[Ratio]"


def test_a_small_benchmark_gives_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    small = "--users 30 --samples 2 --dimension 8 --candidates 16 --repeats 1"
    monkeypatch.setitem(together.BENCHMARKS, "nearest_neighbor", small)
    ratios, why = together.run("nearest_neighbor", details=False)
    assert why == ""
    assert [(one.other, one.kind) for one in ratios] == [("sgemm", "floor"), ("faiss", "peer")]
    assert ratios[0].ratio is not None
    assert ratios[0].ratio > 0
    absent = Ratio("votes", "pfl", "peer", 2.0, None, "s", "pip install pfl")
    table = together.table([ratios[0], Ratio("votes", "sgemm", "floor", 3.0, 2.0, "s"), absent])
    assert "| votes | sgemm (floor) | 3 s | 2 s | 1.50 |" in table
    assert table.endswith("Left out: pfl (pip install pfl).")


def test_a_benchmark_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(together.BENCHMARKS, "nearest_neighbor", "--users none")
    assert together.run("nearest_neighbor", details=False) == ([], "SystemExit: 2")
