"""`python -m benchmarks.all` leaves no benchmark out, and says what it left out of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import benchmarks
from benchmarks import all as together

FOLDER = Path(benchmarks.__file__).parent
#: Parts that benchmarks are made of.
PARTS = {"__init__", "all"}


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
    small = "--users 30 --samples 2 --dimension 8 --candidates 16 8 --repeats 1"
    monkeypatch.setitem(together.BENCHMARKS, "nearest_neighbor", small)
    ratios, why = together.run("nearest_neighbor")
    assert why == ""
    assert [(one.other, one.kind) for one in ratios] == [("sgemm", "floor")] * 2
    assert ratios[0].ratio > 0
