"""`privsyn compare`: how its words are read. What it does is tested with the comparison."""

from __future__ import annotations

from typing import Any

import pytest

from flower_privsyn import comparison
from flower_privsyn.cli import main
from flower_privsyn.errors import ConfigError


def test_an_option_takes_several_values_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {}

    def make_plan(**values: Any) -> None:
        asked.update(values)
        raise ConfigError("stopped here")

    def read(data: str, held_out: str | None, **values: Any) -> str:
        asked.update(values, data=data, held_out=held_out)
        return "everybody"

    monkeypatch.setattr(comparison, "make_plan", make_plan)
    monkeypatch.setattr(comparison.People, "read", read)
    words = ["--data", "a.jsonl", "--epsilon", "1", "--seeds", "5", "--epsilon=4"]
    words += ["--set", "x=1", "--methods", "popri", "dp-ftrl", "--set", "dp-ftrl.y=2"]
    words += ["--epsilon", "-8"]
    assert main(["compare", *words]) == 2
    assert capsys.readouterr().err == "privsyn: stopped here\n"
    assert asked["data"] == "a.jsonl"
    assert asked["people"] == "everybody"
    assert asked["epsilons"] == [1.0, 4.0, -8.0]
    assert asked["methods"] == ["popri", "dp-ftrl"]
    assert asked["settings"] == ["x=1", "dp-ftrl.y=2"]
    assert (asked["seeds"], asked["held_out"], asked["configs"]) == (5, None, ["cpu"])
