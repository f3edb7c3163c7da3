"""What Flower is handed."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from flower_privsyn.host import flower


def test_settings_survive_the_way_to_flower() -> None:
    values: dict[str, bool | int | float | str] = {
        "a.b": 1,
        "text": 'quote " backslash \\ line\nend \x7f é 😀',
        "yes": True,
        "tiny": 1e-9,
        "whole": 2.0,
    }
    assert tomllib.loads(flower._to_toml(values)) == values


def test_a_notebook_that_asks_for_colours_gets_none_in_flowers_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a Jupyter kernel sets for every command that a cell calls.
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(name, "1")
    started = flower.Flower(tmp_path / "run", {})
    try:
        answer = started._flwr("config", "list")
    finally:
        shutil.rmtree(started.temporary)
    assert "error-message" not in answer, answer
