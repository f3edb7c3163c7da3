"""The app of the joint sketch: its settings, of every size it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.strategies import JointSketchConfig

APP = Path(__file__).parents[2] / "baselines" / "joint-sketch"


@pytest.mark.parametrize(
    ("name", "bytes_up"),
    [
        ("few-users", 32_768),
        ("all-pairs", 632_768),
        ("rolling", 3 * 98_304),
        ("best", 98_304),
        ("distilgpt2", 266_564),
    ],
)
def test_every_size_says_what_goes_up(name: str, bytes_up: int) -> None:
    config = configuration_of(resolve_config(load_app(APP), config_name=name))
    assert isinstance(config, JointSketchConfig)
    vocabulary = 50_257 if name == "distilgpt2" else 8_192
    assert 4 * config.num_rounds * (vocabulary + config.num_bigrams) == bytes_up
    readme = (APP / "README.md").read_text(encoding="utf-8")
    assert f"| `{name}` |" in readme
