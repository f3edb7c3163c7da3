"""The app of the hybrid: its settings against the library's."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.comparison import APP as COMPARE
from flower_privsyn.host.app import load_app, resolve_config, strategies_of
from flower_privsyn.strategies import CLIENT_KEYS, Hybrid, HybridConfig

APP = Path(__file__).parents[2] / "baselines" / "hybrid"


def test_settings_are_complete_and_accepted() -> None:
    app = load_app(APP)
    values = resolve_config(app)
    strategies_of(app, values)
    assert set(values) - CLIENT_KEYS == HybridConfig.keys()
    # What the app declares is what the library does by itself.
    assert HybridConfig.from_run_config(values) == HybridConfig(epsilon=1.0)


def test_a_check_knows_its_strategy() -> None:
    """And does not take it for a joint sketch or DP-FTRL, whose settings it has as well."""
    app = load_app(APP)
    ((settings, strategy),) = strategies_of(app, resolve_config(app, config_name="cpu"))
    assert strategy is Hybrid
    assert settings.num_rounds == 11


@pytest.mark.parametrize("percent", [5, 10, 20, 40])
def test_a_comparison_has_every_share_as_its_file_is_called(percent: int) -> None:
    app = load_app(COMPARE)
    values = resolve_config(app, config_name=f"hybrid/hybrid-{percent}")
    ((settings, strategy),) = strategies_of(app, values)
    assert strategy is Hybrid
    assert isinstance(settings, HybridConfig)
    assert settings.first_share == percent / 100
