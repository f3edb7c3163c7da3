"""A check stops a run that names a model which has learnt private text outside of any budget."""

from __future__ import annotations

from pathlib import Path

from flower_privsyn.models import provenance
from tests.support.checked import Check, stops

BASELINES = Path(__file__).parents[2] / "baselines"


def test_a_marked_model_is_named(check: Check, tmp_path: Path) -> None:
    provenance.mark(tmp_path, "research: private text was used outside the budget")
    settings = ("epsilon=8", "accept-noise=true", "num-users=0", f"teacher={tmp_path}")
    said = stops(check(*settings, app=BASELINES / "hybrid", loads=True))
    assert f'teacher = "{tmp_path}" has learnt private text outside of any budget' in said["setup"]
