"""Nodes that crash, fail, answer nonsense or answer late, in Flower's own simulation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation_app import write_app
from tests.support.run_files import lines
from tests.support.simulation import ledger, simulate


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("app") / "six-users")


def counted(run: Path) -> list[dict[str, Any]]:
    """Of every round what became of the six nodes that were asked."""
    keys = ("answers", "missing", "num_nodes", "num_users")
    return [
        {key: value for key, value in line.items() if key in keys or key.startswith(("re", "err"))}
        for line in lines(run / "metrics.jsonl")
    ]


def charged(run: Path) -> list[tuple[object, object]]:
    return [
        (line["round"], line["num_users"]) for line in ledger(run) if line["event"] == "release"
    ]


@pytest.mark.timeout(600)
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the process that crashes is the only one")
@pytest.mark.slow  # TestMisbehavingNodes of the engine has nonsense and errors in one process
def test_a_round_of_crashes_and_nonsense(app: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    behaviour = "1/0=crash 1/1=garbage 1/2=nan 1/3=raise 2/4=garbage"
    settings = {"noise-multiplier": -1.0, "epsilon": 3.0, "num-rounds": 3, "min-users": 1}
    assert simulate(app, run, num_nodes=6, behaviour=behaviour, **settings) is None
    first, second, third = counted(run)
    assert first == {
        "num_nodes": 6,
        "num_users": 2,
        "answers": 2,
        "missing": 0,
        "released": True,
        # The process that was killed, and the exception outside of our handlers.
        "error of Flower or another code": 2,
        "rejected: unexpected records": 1,
        "rejected: wrong type": 1,
    }
    # A killed process costs one answer, not those of all nodes that Flower sends to it later.
    assert second == {
        "num_nodes": 6,
        "num_users": 5,
        "answers": 5,
        "missing": 0,
        "released": True,
        "rejected: unexpected records": 1,
    }
    assert third == {
        "num_nodes": 6,
        "num_users": 6,
        "answers": 6,
        "missing": 0,
        "released": True,
    }
    assert charged(run) == [(1, 2), (2, 5), (3, 6)]
    spent = json.loads((run / "state.json").read_text())
    assert spent["status"] == "finished"
    # Whoever was missing, every round is paid for in full.
    assert [line["epsilon_release"] for line in ledger(run) if line["event"] == "release"][
        -1
    ] == pytest.approx(3.0, rel=0.01)


@pytest.mark.slow  # tests/messages/test_window.py has late replies without Flower's processes
@pytest.mark.timeout(600)
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the process that is late is the only one")
def test_a_node_that_answers_in_the_next_round(app: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"noise-multiplier": 0.0, "epsilon": -1.0, "num-rounds": 3, "round-seconds": 12.0}
    # Node 5 wakes up in round 2, which node 0 keeps open for so long.
    behaviour = "1/5=late16 2/0=late8"
    assert simulate(app, run, num_nodes=6, behaviour=behaviour, **settings) is None
    first, second, third = counted(run)
    assert (first["answers"], first["missing"], first["num_users"]) == (5, 1, 5)
    assert "rejected: late reply" not in first
    assert (second["answers"], second["missing"], second["num_users"]) == (6, 0, 6)
    assert second["rejected: late reply"] == 1
    assert (third["answers"], third["missing"], third["num_users"]) == (6, 0, 6)
    assert "rejected: late reply" not in third
    assert charged(run) == [(1, 5), (2, 6), (3, 6)]
