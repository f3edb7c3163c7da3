"""Environment variables: one place for their names, and the page that lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from flower_privsyn import environment

ROOT = Path(__file__).parents[1]
NAMES = [
    value for name, value in vars(environment).items() if name.isupper() and isinstance(value, str)
]


def test_every_name_is_ours_and_stands_once() -> None:
    assert len(NAMES) == len(set(NAMES)) == 14
    assert all(re.fullmatch(r"PRIVSYN_[A-Z_]+", name) for name in NAMES)


def test_no_other_module_spells_a_name() -> None:
    for file in (ROOT / "flower_privsyn").rglob("*.py"):
        if file.name == "environment.py":
            continue
        text = file.read_text(encoding="utf-8")
        if "PRIVSYN_" in text:  # in the words of a docstring, then
            spelled = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
            assert not {node.value for node in spelled} & set(NAMES), file


def test_the_page_lists_what_people_may_set() -> None:
    page = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(PRIVSYN_[A-Z_]+)` \|", page, re.MULTILINE)
    assert listed == NAMES[:11]
