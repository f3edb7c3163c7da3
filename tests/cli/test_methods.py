"""`privsyn methods METHOD` and docs/settings.md: what the settings' classes declare."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from flower_privsyn.catalogue import entries
from flower_privsyn.cli import main
from flower_privsyn.cli.methods import settings_of
from flower_privsyn.client_apps.policy import NodePolicy

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_what_the_code_declares(capsys: pytest.CaptureFixture[str]) -> None:
    """After a change: `privsyn methods --settings > docs/settings.md`."""
    assert main(["methods", "--settings"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_key() -> None:
    page = PAGE.read_text(encoding="utf-8")
    keys = frozenset().union(*(entry.strategy.config_class.keys() for entry in entries().values()))
    keys |= {name.replace("_", "-") for name in NodePolicy.declared} - {"source"}
    assert keys == {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}


@pytest.mark.parametrize("method", entries())
def test_the_settings_of_a_method_fit_a_screen(
    method: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["methods", method]) == 0
    printed = capsys.readouterr().out
    assert entries()[method].strategy.config_class.keys() <= set(re.findall(r"[a-z-]+", printed))
    lines = printed.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("needed: data")
    assert main(["methods", method, "--json"]) == 0
    settings = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in settings] == [key for key, *_ in settings_of(method)]


def test_a_narrow_table_loses_no_letter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are longer than their columns there, also where the output is piped."""
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["methods"]) == 0
    printed = capsys.readouterr().out
    assert set(entries()) <= set(printed.replace("│", " ").split())
    assert "…" not in printed
