"""One small run of every family, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context

from flower_privsyn.client_apps.training import create_training_app
from flower_privsyn.data import Users
from flower_privsyn.strategies import (
    DPFedAvg,
    DPFedAvgConfig,
    POPri,
    POPriConfig,
)
from flower_privsyn.testing import HashEmbedder, LoopbackGrid
from tests.support.federation import WORDS, make_users
from tests.support.words import WordGenerator, train_words

Builder = Callable[..., Any]


def small(tmp_path: Path, public_file: Path, **changes: Any) -> dict[str, Any]:
    return {
        "num_nodes": 2,
        "num_prompts": 6,
        "responses_per_prompt": 5,
        "rejected_rank": 4,
        "public_text": str(public_file),
        "synthetic_samples": 10,
        "run_dir": str(tmp_path / "run"),
        "node_timeout": 0.2,
        "accept_noise": True,
        "noise_multiplier": 0.1,
        **changes,
    }


class Runs:
    """One small run of every family, in this process."""

    def __init__(self, tmp_path: Path, public_file: Path, federation: Builder) -> None:
        self.folder, self.public_file, self.federation = tmp_path, public_file, federation

    def settings(self, **changes: Any) -> dict[str, Any]:
        return small(self.folder, self.public_file, **changes)

    def private_evolution(self, settings: Builder, evolution: Builder) -> tuple[LoopbackGrid, Any]:
        grid = self.federation(make_users(6), num_nodes=2)
        strategy = evolution(settings(num_rounds=2, noise_multiplier=0.1))
        strategy.start(grid)
        return grid, strategy

    def popri(self) -> tuple[LoopbackGrid, Any]:
        grid = self.federation(make_users(6), num_nodes=2)
        strategy = POPri(
            POPriConfig(**self.settings(num_rounds=2)),
            embedder=HashEmbedder(),
            generator=WordGenerator(WORDS),
            trainer=train_words,
        )
        strategy.start(grid)
        return grid, strategy

    def dp_fedavg(self, model: Path) -> tuple[LoopbackGrid, Any]:
        users = Users.from_rows([(f"user-{i}", "the river waits under the train") for i in "abcd"])

        def load(context: Context) -> Users:
            return users.deal(
                partition_id=int(context.node_config["partition-id"]), num_partitions=2
            )

        grid = LoopbackGrid(create_training_app(load, device="cpu"), num_nodes=2)
        strategy = DPFedAvg(
            DPFedAvgConfig(
                model=str(model),
                num_rounds=2,
                num_nodes=2,
                noise_multiplier=0.1,
                clip_norm=0.05,
                max_tokens=32,
                adaptive_clipping=True,
                run_dir=str(self.folder / "run"),
                node_timeout=0.2,
                accept_noise=True,
            )
        )
        strategy.start(grid)
        return grid, strategy


@pytest.fixture
def runs(tmp_path: Path, public_file: Path, federation: Builder) -> Runs:
    return Runs(tmp_path, public_file, federation)
