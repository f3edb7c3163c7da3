"""What Flower is handed."""

from __future__ import annotations

import tomllib

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
