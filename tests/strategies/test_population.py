"""Populations on disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from flower_privsyn.strategies._population import Population


def test_its_file_is_for_the_owner_alone(tmp_path: Path) -> None:
    """With votes it is the release."""
    population = Population.create(["one", "two"], round_number=3, source="public")
    population.to_parquet(tmp_path / "p.parquet", survived=[1, 0])
    assert (tmp_path / "p.parquet").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]
    assert pq.read_table(tmp_path / "p.parquet").column("survived").to_pylist() == [1, 0]
