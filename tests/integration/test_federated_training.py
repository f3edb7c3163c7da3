"""DP-FedAvg in Flower's simulation, with the ready client app: the same bits as in one process."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context

from flower_privsyn.client_apps.training import create_training_app
from flower_privsyn.data import Users
from flower_privsyn.strategies import DPFedAvg, DPFedAvgConfig
from flower_privsyn.testing import LoopbackGrid

_SERVER = """
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn.strategies import DPFedAvg, DPFedAvgConfig

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    DPFedAvg(DPFedAvgConfig.from_run_config(context.run_config)).start(grid)
"""

_HEAD = """
[project]
name = "six-trainers"
version = "1.0.0"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "six.server_app:app"
clientapp = "flower_privsyn.client_apps.training:app"

[tool.flwr.app.config]
data = ""
"""


def write_app(folder: Path, config: DPFedAvgConfig) -> Path:
    """Write an app that declares every key of the strategy."""
    (folder / "six").mkdir(parents=True)
    (folder / "six" / "__init__.py").touch()
    (folder / "six" / "server_app.py").write_text(_SERVER)
    stated = {key: value for key, value in config.to_dict().items() if key in config.keys()}  # noqa: SIM118
    values = {key: -1.0 if value is None else value for key, value in stated.items()}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    (folder / "pyproject.toml").write_text(_HEAD + "\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_simulation_of_two_nodes_with_three_users(
    llama: Path, texts: list[str], tmp_path: Path
) -> None:
    rows = [(f"user-{i}", texts[3 * i + k]) for i in range(6) for k in range(1 + i % 3)]
    data = tmp_path / "users.jsonl"
    data.write_text(
        "".join(json.dumps({"client_id": user, "text": text}) + "\n" for user, text in rows)
    )
    config = DPFedAvgConfig(
        model=str(llama),
        noise_multiplier=0.0,
        num_rounds=2,
        num_users=6,
        num_nodes=2,
        local_learning_rate=0.5,
        local_batch_size=1,
        clip_norm=0.05,
        max_tokens=32,
    )
    app = write_app(tmp_path / "app", config)
    command = [f"{sysconfig.get_path('scripts')}/privsyn", "run", str(app)]
    run = tmp_path / "run"
    done = subprocess.run(
        [*command, "--run-dir", str(run), "--set", f"data={data}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Trained model: {run}/models/final" in done.stdout

    users = Users.from_rows(rows)

    def load(context: Context) -> Users:
        return users.deal(partition_id=int(context.node_config["partition-id"]), num_partitions=6)

    alone = DPFedAvg(replace(config, num_nodes=6, run_dir=str(tmp_path / "loopback")))
    alone.start(LoopbackGrid(create_training_app(load), num_nodes=6))
    for number in (1, 2):
        one, three = (
            np.load(path / "rounds" / f"{number:04d}" / "release.npy")
            for path in (alone.run.path, run)
        )
        assert np.abs(one).max() > 0
        assert np.array_equal(one, three)
    models = [path / "models" / "final" / "model.safetensors" for path in (alone.run.path, run)]
    assert models[0].read_bytes() == models[1].read_bytes()

    # A wrong value is named before Flower is started.
    refused = subprocess.run(
        [*command, "--set", f"data={data}", "--set", "clip-norm=-1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "clip-norm must be a number" in refused.stderr
