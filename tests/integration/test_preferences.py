"""POPri in a real federation: what Ray's nodes release is what one process releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.host.launch import run_app
from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.testing import (
    HashEmbedder,
    LoopbackGrid,
    WordGenerator,
    hash_embedder,
    train_words,
)
from tests.support.federation import WORDS, make_users
from tests.support.federation_app import write_app

_CONFIG = """
[tool.flwr.app.config]
run-dir = ""
resume = false
num-nodes = 2
num-users = 6
num-rounds = 3
epsilon = -1.0
noise-multiplier = 0.0
checkpoint = "fred"
moment-dimensions = 4
num-prompts = 6
responses-per-prompt = 4
rejected-rank = 3
synthetic-samples = 5
public-text = ""
node-timeout = 120.0
behaviour = "honest"
"""

_SERVER = f"""
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words

WORDS = {WORDS!r}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = POPriConfig.from_run_config(context.run_config, other_keys=["behaviour"])
    POPri(
        config, embedder=HashEmbedder(), generator=WordGenerator(WORDS), trainer=train_words
    ).start(grid)
"""


def loopback(public: str, run: Path) -> None:
    """The same six users, one per node, in this process."""
    users = make_users(6)

    def load(context: Context) -> Users:
        return users.deal(
            partition_id=int(context.node_config["partition-id"]),
            num_partitions=int(context.node_config["num-partitions"]),
        )

    app = create_client_app(load, embedder=hash_embedder, cache_directory=run.parent / "cache")
    config = POPriConfig(
        noise_multiplier=0.0,
        num_rounds=3,
        num_nodes=6,
        checkpoint="fred",
        moment_dimensions=4,
        num_prompts=6,
        responses_per_prompt=4,
        rejected_rank=3,
        synthetic_samples=5,
        public_text=public,
        run_dir=str(run),
    )
    POPri(
        config, embedder=HashEmbedder(), generator=WordGenerator(WORDS), trainer=train_words
    ).start(LoopbackGrid(app, num_nodes=6))


@pytest.mark.slow  # what differs from private evolution under Ray runs in one process above
@pytest.mark.timeout(600)
def test_two_nodes_of_three_users_under_ray(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app")
    project = folder / "pyproject.toml"
    public = str(folder / "public.jsonl")
    head = project.read_text().partition("[tool.flwr.app.config]")[0]
    project.write_text(head + _CONFIG.replace('public-text = ""', f'public-text = "{public}"'))
    (folder / "six" / "server_app.py").write_text(_SERVER)
    app = load_app(folder)
    run = tmp_path / "run"
    assert run_app(app, run, resolve_config(app)).error is None
    loopback(public, tmp_path / "loopback")

    ledger: list[dict[str, Any]] = [
        json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()
    ]
    assert [line["query"] for line in ledger if line["event"] == "release"] == [
        "moments",
        "mean_similarity",
        "mean_similarity",
    ]
    for number in ("0001", "0002", "0003"):
        found, expected = (
            np.load(folder / "rounds" / number / "release.npy")
            for folder in (run, tmp_path / "loopback")
        )
        assert np.abs(expected).sum() > 0
        assert np.array_equal(found, expected)
    assert (run / "synthetic.jsonl").read_text() == (
        tmp_path / "loopback" / "synthetic.jsonl"
    ).read_text()
