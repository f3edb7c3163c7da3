"""`privsyn node`, as its owner types it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import dp_accounting
import pytest

from flower_privsyn.cli import main
from flower_privsyn.client_apps.account import Charge, NodeLedger
from flower_privsyn.client_apps.guard import find_policy, model_digest
from flower_privsyn.client_apps.policy import NodePolicy, policy_text
from flower_privsyn.privacy import NeighboringRelation, PoissonSampling

pytestmark = pytest.mark.usefixtures("owner")

ANY = NodePolicy(max_epsilon=math.inf)


def test_a_policy_is_written_where_the_node_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PRIVSYN_NODE_POLICY", "~/mine.toml")
    assert main(["node", "policy", "--init"]) == 0
    assert find_policy({}).source == str(tmp_path / "mine.toml")


def test_a_policy_is_written_once_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config" / "flower-privsyn" / "node-policy.toml"
    assert main(["node", "policy"]) == 0
    assert capsys.readouterr().out == f"# the defaults: there is no {path}\n\n{policy_text()}"
    assert main(["node", "policy", "--init"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text() == policy_text()
    path.write_text("max-epsilon = 3.0\n")
    assert main(["node", "policy", "--init"]) == 2
    assert capsys.readouterr().err == f"privsyn: {path} exists and is left as it is.\n"
    assert main(["node", "policy"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"# {path}\n")
    assert "max-epsilon = 3.0\n" in shown
    other = tmp_path / "other.toml"
    assert main(["node", "policy", "--init", str(other)]) == 0
    assert main(["node", "policy", str(other)]) == 0
    assert f"# {other}" in capsys.readouterr().out
    other.write_text("max-rounds = 0")
    assert main(["node", "policy", str(other)]) == 2
    assert "max-rounds must be a whole number of at least 1, got 0" in capsys.readouterr().err


def test_a_ledger_shows_runs_and_what_is_left(
    asked: Callable[..., Charge], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", "ledger"]) == 0
    assert "No data set has an account" in capsys.readouterr().out
    ledger = NodeLedger("people")
    ledger.charge(asked(1), ANY)
    ledger.charge(asked(2, classes=("ill", "well")), ANY)
    ledger.charge(asked(run=8, server="", sampling=PoissonSampling(1.0)), ANY)
    NodeLedger("others").charge(asked(), ANY)
    policy = tmp_path / "policy.toml"
    policy.write_text('max-epsilon = 9.0\ndelta = 1e-5\nrelation = "replace-one"')
    assert main(["node", "ledger", "--dataset", "people", "--policy", str(policy)]) == 0
    out = capsys.readouterr().out
    assert "asked about the classes 'ill', 'well' of documents\n" in out
    whole = dp_accounting.get_epsilon_gaussian(1.0 / math.sqrt(3), 1e-5)
    for part in (
        'run 7 of server "north"', "2 of 20 rounds: nearest_neighbor_histogram, noise multiplier 2",
        "noise central, server trusted",
        f"epsilon {whole:.4g} of 9 at delta 1e-05 (replace-one), {9 - whole:.4g} left",
    ):  # fmt: skip
        assert part in out
    assert main(["node", "ledger", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["dataset"] for entry in document["datasets"]] == ["others", "people"]
    assert document["datasets"][1]["runs"][0]["rounds"] == [1, 2]
    assert document["datasets"][1]["relation"] == NeighboringRelation.ZERO_OUT.value
    assert main(["node", "ledger", "--dataset", "nobody"]) == 2
    assert "it holds others, people." in capsys.readouterr().err


def test_a_digest_is_that_of_the_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["node", "digest", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == model_digest(tmp_path)
    assert main(["node", "digest", str(tmp_path / "config.json")]) == 2
