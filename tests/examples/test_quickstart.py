"""The quickstart itself, as printed in docs/quickstart.md; minutes long."""

from __future__ import annotations

import json
import re
from pathlib import Path

import dp_accounting
import pytest

from flower_privsyn.data import load_users
from flower_privsyn.evaluation.nearest_neighbor import evaluate_run
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.host.launch import run_app
from flower_privsyn.runs import RunDirectory

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_survivors_come_nearer_to_held_out_text(tmp_path: Path) -> None:
    app = load_app(ROOT / "examples" / "quickstart")
    assert run_app(app, tmp_path / "run", resolve_config(app)).error is None
    run = RunDirectory.open(tmp_path / "run")
    users = load_users(ROOT / "examples" / "quickstart" / "quickstart" / "data" / "users.jsonl")
    figures = evaluate_run(run, users).to_dict()
    for distance in ("to_nearest_private", "from_private_to_nearest"):
        assert figures["survivors"][distance] < figures["initial"][distance]

    ledger = [json.loads(line) for line in run.ledger_file.read_text().splitlines()]
    releases = [line for line in ledger if line["event"] == "release"]
    assert len(releases) == 8
    # Recomputed with the library alone, from the lines alone.
    together = sum(line["noise_multiplier"] ** -2 for line in releases) ** -0.5
    epsilon = dp_accounting.get_epsilon_gaussian(together, releases[-1]["delta"])
    assert epsilon == pytest.approx(7.58, abs=5e-3)
    assert releases[-1]["epsilon_release"] == pytest.approx(epsilon, abs=5e-3)
    assert releases[-1]["epsilon_known_cohorts"] == pytest.approx(epsilon, abs=5e-3)
    assert len(run.synthetic_jsonl.read_text().splitlines()) == 400


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("side", ["before", "after"])
def test_an_existing_federation(tmp_path: Path, side: str) -> None:
    app = load_app(ROOT / "examples" / "existing-federation" / side)
    assert run_app(app, tmp_path / "run", resolve_config(app)).error is None
    log = (tmp_path / "run.owner" / "flower.log").read_text()
    found = re.search(r"trained model: predicts ([\d.]+)% .* untrained: ([\d.]+)%", log)
    assert found is not None
    trained, untrained = map(float, found.groups())
    assert trained > untrained + 1
