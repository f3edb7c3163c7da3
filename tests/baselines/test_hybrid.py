"""The shares of a hybrid's budget that a comparison has files for."""

from __future__ import annotations

import pytest

from flower_privsyn.comparison import APP
from flower_privsyn.host.app import load_app, resolve_config


@pytest.mark.parametrize("percent", [5, 10, 20, 40])
def test_a_comparison_has_every_share_as_its_file_is_called(percent: int) -> None:
    values = resolve_config(load_app(APP), config_name=f"hybrid/hybrid-{percent}")
    assert (values["strategy"], values["first-share"]) == ("hybrid", percent / 100)
