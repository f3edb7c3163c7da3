"""What an app does not declare stands in its key `settings`, and is read as if it were declared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from flower_privsyn.catalogue import configuration_of
from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.client_apps.node_users import users_of_node
from flower_privsyn.errors import ConfigError, NotAllowedError
from flower_privsyn.run_config import folded, unfolded
from flower_privsyn.strategies import POPriConfig


def test_settings_are_keys_like_the_declared_ones() -> None:
    given = {"strategy": "popri", "epsilon": 1.0, "settings": "temperature = 0.8\nloss = 'sft'\n"}
    found = configuration_of(given)
    assert isinstance(found, POPriConfig)
    assert (found.epsilon, found.temperature, found.loss) == (1.0, 0.8, "sft")
    assert found == configuration_of(unfolded(given))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("temperature: 0.8", "settings must be TOML, on each line a key = value: "),
        (3, "settings must be a text in TOML, got 3"),
        ("epsilon = 2.0", "epsilon stands in settings and is a key of its own of the app"),
        ("settings = 'seed = 1'", "settings stands in settings"),
        ('"seed = 1\\nclip" = 2', r"'seed = 1\\nclip' in settings must be a key of letters"),
        ('"text.seed" = 1', "'text.seed' in settings must be a key of letters"),
        ("[text]\nseed = 1", "text in settings must be a text in quotation marks, a number, true"),
        ("temprature = 0.8", r'unknown key "temprature" \(did you mean "temperature"\?\)'),
        ("temperature = 'hot'", "temperature must be a number"),
    ],
)
def test_what_cannot_be_read_is_named(settings: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        configuration_of({"strategy": "popri", "epsilon": 1.0, "settings": settings})


@pytest.mark.parametrize("form", ["generator = '{}'\noops", "generator = ['{}']"])
def test_what_cannot_be_read_is_not_quoted(form: str) -> None:
    """The address of a generator may hold a key."""
    settings = form.format("https://me:k-secret@host/v1#model")
    with pytest.raises(ConfigError) as refusal:
        configuration_of({"strategy": "popri", "epsilon": 1.0, "settings": settings})
    assert "k-secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_folded_and_unfolded_nothing_has_changed() -> None:
    values = {
        "epsilon": 1e-06,
        "limit": math.inf,
        "text": 'a "word",\n\x7f 𝛆 and \\n',
        "whole": 3,
        "resume": False,
        "settings": "",
    }
    config = folded(values, {"epsilon", "settings"})
    assert config.keys() == {"epsilon", "settings"}
    assert unfolded(config) == values


def test_a_supernode_reads_no_data_that_settings_name(tmp_path: Path) -> None:
    context = Context(
        run_id=1,
        node_id=5,
        node_config={},
        state=RecordDict(),
        run_config={"settings": f'data = "{tmp_path}/others.jsonl"'},
    )
    with (
        simulated(False),
        pytest.raises(NotAllowedError, match=r"The run names the data .*others\.jsonl"),
    ):
        users_of_node(context)
