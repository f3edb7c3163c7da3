"""The table of versions names the ranges that pyproject.toml has, and says what was asked."""

from __future__ import annotations

from pathlib import Path

from packaging.specifiers import SpecifierSet

from scripts import versions

PAGE = (Path(__file__).parents[2] / "docs" / "versions.md").read_text("utf-8")


def test_the_page_has_the_ranges_and_the_tested_versions_of_today() -> None:
    for name, extra in versions.LIBRARIES.items():
        allowed = versions.declared((extra,) if extra else ())[name]
        row = versions.Row(name, allowed, versions.versions_in_use().get(name, "-"), (), {}).cells()
        assert f"| {' | '.join(row[:3])} |" in PAGE, "run python -m scripts.versions"


def test_a_row_says_what_resolves_and_what_lies_outside() -> None:
    asked = {"2.5": ("3.11", "3.13"), "2.0": (), "3.0": ("3.11",)}
    row = versions.Row("x", SpecifierSet(">=2,<3"), "2.1", ("3.0", "2.5", "2.0", "1.0"), asked)
    assert row.cells() == [
        "`x`",
        "`>=2,<3`",
        "2.1",
        "2.0 (for no Python)",
        "2.5 (3.11, 3.13)",
        "3.0 (3.11), outside",
    ]
    within = versions.Row("x", SpecifierSet(">=2"), "-", ("2.1",), {"2.1": ("3.11",)})
    assert within.cells()[-1] == "2.1"
