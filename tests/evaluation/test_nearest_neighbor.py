"""Distances to held-out text, and the stamp."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation import STAMP
from flower_privsyn.evaluation.nearest_neighbor import evaluate_run, main, mean_nearest_distance
from flower_privsyn.testing import HashEmbedder
from tests.support.federation import make_users

Builder = Callable[..., Any]


def test_mean_nearest_distance_equals_brute_force() -> None:
    generator = np.random.default_rng(0)
    points = generator.standard_normal((50, 6)).astype(np.float32)
    targets = generator.standard_normal((30, 6)).astype(np.float32)
    differences = points[:, None].astype(np.float64) - targets[None]
    brute = float(np.linalg.norm(differences, axis=-1).min(axis=1).mean())
    assert mean_nearest_distance(points, targets) == pytest.approx(brute, rel=1e-9)
    assert mean_nearest_distance(points, points) == 0.0


def test_nothing_to_compare() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_nearest_distance(np.zeros((0, 3), np.float32), np.zeros((1, 3), np.float32))


class TestRun:
    @pytest.fixture
    def finished(self, federation: Builder, settings: Builder, evolution: Builder) -> Any:
        strategy = evolution(settings(epsilon=20.0, held_out_fraction=0.3))
        strategy.start(federation(make_users(150)))
        return strategy.run

    def test_survivors_come_nearer_and_the_output_is_stamped(self, finished: Any) -> None:
        figures = evaluate_run(finished, make_users(150), embedder=HashEmbedder())
        record = figures.to_dict()
        assert record["stamp"] == record["survivors"]["stamp"] == STAMP
        assert 20 < figures.held_out_users < 75
        assert figures.survivors.to_nearest_private < figures.initial.to_nearest_private

    def test_a_run_that_held_nobody_out(
        self, federation: Builder, settings: Builder, evolution: Builder
    ) -> None:
        strategy = evolution(settings(num_rounds=1))
        strategy.start(federation())
        with pytest.raises(ConfigError, match="held nobody out"):
            evaluate_run(strategy.run, make_users(12), embedder=HashEmbedder())

    def test_command_line_errors_are_sentences(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        users = tmp_path / "users.jsonl"
        users.write_text(json.dumps({"client_id": "a", "text": "court"}) + "\n")
        assert main([str(tmp_path / "nothing"), "--users", str(users)]) == 2
        assert "nothing" in capsys.readouterr().err
