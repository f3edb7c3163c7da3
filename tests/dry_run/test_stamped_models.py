"""A check stops a run that names a model which has learnt private text outside of any budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.models import stamped
from tests.support.checked import Check, stops

BASELINES = Path(__file__).parents[2] / "baselines"


@pytest.mark.parametrize(
    ("app", "key"),
    [
        ("popri", "generator"),
        ("hybrid", "model"),
        ("hybrid", "initial-model"),
        ("hybrid", "teacher"),
    ],
)
def test_a_marked_model_is_named(check: Check, tmp_path: Path, app: str, key: str) -> None:
    stamped.mark(tmp_path, "research: private text was used outside the budget")
    settings = ("epsilon=8", "accept-noise=true", "num-users=0", f"{key}={tmp_path}")
    said = stops(check(*settings, app=BASELINES / app, loads=True))
    assert f'{key} = "{tmp_path}" has learnt private text outside of any budget' in said["setup"]
