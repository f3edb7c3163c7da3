"""The tests' own order: what several modules use lies in `tests.support`, and nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
MODULES = sorted(set(FOLDER.rglob("*.py")) - {Path(__file__)})  # which holds examples
#: An import in the text of a script that a test runs.
_IN_A_SCRIPT = re.compile(r"^\s*(?:from|import) (tests(?:\.\w+)*)", re.MULTILINE)


def imported(source: str) -> set[str]:
    """Modules of `tests` that a module imports, itself or in a script that it holds as text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            joined = {f"{base}.{alias.name}" for alias in node.names}
            found |= joined if base in ("tests", "tests.support") else {base}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(_IN_A_SCRIPT.findall(node.value))
    return {name for name in found if name.split(".")[0] == "tests" or name.startswith(".")}


def test_no_module_imports_a_test() -> None:
    wrong = {}
    for path in MODULES:
        # The checks of a page, and the pages to check, are of use to no other folder.
        home = "tests.report." if path.parent.name == "report" else "tests.support."
        others = {
            n for n in imported(path.read_text()) if not n.startswith(("tests.support.", home))
        }
        if others:
            wrong[str(path.relative_to(FOLDER))] = others
    assert wrong == {}
