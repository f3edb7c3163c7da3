"""Populations on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flower_privsyn.strategies.parts.population import Population


def test_round_trip_with_extra_columns(tmp_path: Path) -> None:
    population = Population.create(
        ["one", "two"], round_number=3, source="variation", parents=[("2:0",), ("2:5", "2:6")]
    ).with_embeddings(np.arange(6, dtype=np.float32).reshape(2, 3))
    population.to_parquet(tmp_path / "p.parquet", survived=[1, 0])
    assert (tmp_path / "p.parquet").stat().st_mode & 0o777 == 0o600  # with votes, the release
    read = Population.from_parquet(tmp_path / "p.parquet")
    assert (read.texts, read.ids, read.parents) == (
        ("one", "two"),
        ("3:0", "3:1"),
        population.parents,
    )
    assert read.embeddings is not None
    assert np.array_equal(read.embeddings, population.embeddings)
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


def test_take_repeats_and_reorders() -> None:
    taken = Population.create(["a", "b"], round_number=1, source="public").take(np.array([1, 1, 0]))
    assert taken.texts == ("b", "b", "a")
    assert taken.ids == ("1:1", "1:1", "1:0")
