"""The table of versions names the ranges that pyproject.toml has, and says what was asked."""

from __future__ import annotations

from scripts import versions


def test_the_page_has_the_ranges_and_the_tested_versions_of_today() -> None:
    page = versions.PAGE.read_text("utf-8")
    for name, extra in versions.LIBRARIES.items():
        allowed = versions.declared((extra,) if extra else ())[name]
        row = versions.Row(name, allowed, versions.versions_in_use().get(name, "-"), (), {}).cells()
        assert f"| {' | '.join(row[:3])} |" in page, "run python -m scripts.versions"
