"""The run configuration chooses the method."""

from collections.abc import Callable

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.host.simulation import App, check_settings
from flower_privsyn.strategies import STRATEGIES, DPFedAvgConfig, configuration_of, strategy_of


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_named_strategy_gets_its_own_keys(name: str) -> None:
    config, strategy = STRATEGIES[name]
    values = {"strategy": name, "epsilon": 2.0, "num-rounds": 1, "data": "users.jsonl"}
    # Keys of all the others are there too, as in an app that declares every one.
    every = frozenset().union(*(other.keys() for other, _ in STRATEGIES.values()))
    values |= dict.fromkeys(every - config.keys(), "not read")
    found = configuration_of(values)
    assert type(found) is config
    assert (found.epsilon, found.num_rounds) == (2.0, 1)
    assert type(strategy_of(values)) is strategy


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_one_user_can_cost_is_bounded_unless_it_is_asked_for(name: str) -> None:
    """The time a user's answer takes is noised by nobody."""
    config, _ = STRATEGIES[name]
    ours = config(epsilon=1.0)
    assert 1 <= ours.max_samples <= 64
    if "local-steps" in config.keys():  # noqa: SIM118 - a method, not a mapping's keys
        assert 1 <= ours.local_steps <= 64
        assert config(epsilon=1.0, max_samples=0, local_steps=0).question(0.1).max_steps == 0
    elif name != "private-evolution":
        assert config(epsilon=1.0, max_samples=0).max_samples == 0


@pytest.mark.parametrize("settings", [DPFedAvgConfig.pre_text, DPFedAvgConfig.popri])
def test_the_papers_settings_have_no_cap(settings: Callable[..., DPFedAvgConfig]) -> None:
    ours = settings(epsilon=1.0)
    assert (ours.max_samples, ours.local_steps) == (0, 0)
    assert settings(epsilon=1.0, max_samples=8).max_samples == 8


@pytest.mark.parametrize("name", [None, "pre-text", "", 3])
def test_an_unknown_strategy_is_named_with_those_there_are(name: object) -> None:
    with pytest.raises(ConfigError, match=r'one of "private-evolution", .*"dp-ftrl", got'):
        configuration_of({"strategy": name, "epsilon": 1.0})


def test_a_key_of_no_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match='unknown key "epsilonn".*did you mean "epsilon"'):
        configuration_of({"strategy": "popri", "epsilon": 1.0, "epsilonn": 1.0})


def test_a_value_is_checked_before_flower_starts(tmp_path) -> None:
    values = {"strategy": "popri", "epsilon": 1.0, "rejected-rank": 99, "run-dir": ""}
    app = App(path=tmp_path, name="mine", defaults=values)
    with pytest.raises(ConfigError, match="rejected-rank"):
        check_settings(app, values)
