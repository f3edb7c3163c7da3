"""No function is longer than a page of text."""

from __future__ import annotations

import ast
from pathlib import Path

MODULES = sorted((Path(__file__).parents[1] / "flower_privsyn").rglob("*.py"))
MOST_LINES_OF_A_FUNCTION = 80


def functions(source: str) -> dict[str, int]:
    """Lines of every function of a module, its decorators aside, by name and first line."""
    return {
        f"{node.name} (line {node.lineno})": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_no_function_is_too_long() -> None:
    lines = {
        f"{path}: {name}": count
        for path in MODULES
        for name, count in functions(path.read_text()).items()
    }
    assert lines
    assert {name: n for name, n in lines.items() if n > MOST_LINES_OF_A_FUNCTION} == {}


def test_a_function_is_measured_from_its_name_to_its_last_line() -> None:
    source = "@decorated\ndef outer():\n    async def inner():\n        pass\n\n    return inner\n"
    assert functions(source) == {"outer (line 2)": 5, "inner (line 3)": 2}
