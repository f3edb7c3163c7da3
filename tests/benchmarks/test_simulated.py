"""The population for tests of scale: readable, seeded, of few texts, with topics."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulated import _passages, simulate_users
from flower_privsyn.data import Users, load_users
from flower_privsyn.errors import ConfigError


def made(path: Path, **arguments: int) -> Users:
    simulate_users(path, **arguments)
    return load_users(path)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_as_many_as_asked(tmp_path: Path, suffix: str) -> None:
    steps: list[int] = []
    path = tmp_path / f"population.{suffix}"
    rows = simulate_users(path, users=5000, samples_per_user=3, progress=steps.append)
    users = load_users(path)
    assert (len(users), len(users.texts), rows, sum(steps)) == (5000, 15_000, 15_000, 5000)
    assert set(np.bincount(users.owners)) == {3}
    assert set(users.texts) <= set(_passages()[0])
    assert len(set(users.texts)) > 5000


def test_the_same_in_both_formats_and_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    small = made(tmp_path / "a.jsonl", users=300, samples_per_user=4, seed=3)
    same = made(tmp_path / "a.parquet", users=300, samples_per_user=4, seed=3)
    large = made(tmp_path / "b.parquet", users=5000, samples_per_user=4, seed=3)
    other = made(tmp_path / "c.parquet", users=300, samples_per_user=4, seed=4)
    assert small.texts == same.texts == large.texts[:1200]
    assert small.user_ids == same.user_ids == large.user_ids[:300]
    assert small.texts != other.texts
    simulate_users(tmp_path / "b.jsonl", users=5000, samples_per_user=4, seed=3)
    parquet, json_lines = (tmp_path / f"b.{suffix}" for suffix in ("parquet", "jsonl"))
    assert 4 * parquet.stat().st_size < json_lines.stat().st_size


def test_users_have_topics(tmp_path: Path) -> None:
    """Two texts of a user share their source far more often than those of two users."""
    texts, topics = _passages()
    source = dict(zip(texts, topics.tolist(), strict=True))
    users = made(tmp_path / "a.parquet", users=4000, samples_per_user=2)
    of_text = np.array([source[text] for text in users.texts]).reshape(-1, 2)
    own = np.mean(of_text[:, 0] == of_text[:, 1])
    others = np.mean(of_text[:-1, 0] == of_text[1:, 1])
    # Both drawn from the own topic with probability 0.75 squared.
    assert 0.5 < own < 0.7
    assert others < 0.1
    assert max(Counter(of_text.reshape(-1).tolist()).values()) < 0.15 * of_text.size


def test_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for name, arguments in (
        ("users", {"users": 0}),
        ("samples-per-user", {"users": 1, "samples_per_user": 0}),
        ("seed", {"users": 1, "seed": -1}),
    ):
        with pytest.raises(ConfigError, match=name):
            simulate_users(path, **arguments)
    with pytest.raises(ConfigError, match=r"\.jsonl or \.parquet"):
        simulate_users(tmp_path / "a.csv", users=1)
    with pytest.raises(ConfigError, match="no folder"):
        simulate_users(tmp_path / "none" / "a.jsonl", users=1)
    assert not list(tmp_path.iterdir())
