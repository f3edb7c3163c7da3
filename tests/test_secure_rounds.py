"""The benchmark of rounds of secure aggregation, without Flower's processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import secure_rounds
from flower_privsyn.host.app import load_app
from flower_privsyn.testing import LoopbackGrid

NODES, ROUNDS = 4, 2


def test_it_times_five_messages_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVSYN_NODE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # no power is cut here
    monkeypatch.syspath_prepend(str(secure_rounds.APP))
    from rounds_app.client_app import app
    from rounds_app.server_app import ask

    secure_rounds.write_users(tmp_path / "users.jsonl", NODES)
    run = tmp_path / "run"
    settings = {**load_app(secure_rounds.APP).defaults, "num-candidates": 32, "run-dir": str(run)}
    grid = LoopbackGrid(
        app,
        node_configs=[
            {"data": str(tmp_path / "users.jsonl"), "partition-id": node, "num-partitions": NODES}
            for node in range(NODES)
        ],
        run_config=settings,
    )
    ask(grid, settings)
    assert json.loads((run / "state.json").read_text())["status"] == "finished"
    messages = secure_rounds.messages_of(run)
    exchanges = secure_rounds.exchanges(messages)
    assert [one["step"] for one in exchanges] == [*secure_rounds.STEPS] * ROUNDS
    assert all(one["ended"] > one["begun"] and one["lost"] == 0 for one in exchanges)
    line = {"nodes": NODES, "exchanges": exchanges, "messages": messages, "load": (0.0, 0.0)}
    assert secure_rounds.table(line).count("|") == len(secure_rounds.PARTS) + 6
