"""The table of versions names the ranges that pyproject.toml has, and says what was asked."""

from __future__ import annotations

from pathlib import Path

from scripts import versions

PAGE = (Path(__file__).parents[2] / "docs" / "versions.md").read_text("utf-8")


def test_the_page_has_the_ranges_and_the_tested_versions_of_today() -> None:
    for name, extra in versions.LIBRARIES.items():
        allowed = versions.declared((extra,) if extra else ())[name]
        row = versions.Row(name, allowed, versions.versions_in_use().get(name, "-"), (), {}).cells()
        assert f"| {' | '.join(row[:3])} |" in PAGE, "run python -m scripts.versions"
