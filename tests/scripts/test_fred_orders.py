"""The orders of FreD in miniature: distances by the package's own code, and the tables of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.experiments import fred_orders
from scripts.experiments.fred_data import GROUPS, Set, load, store
from scripts.experiments.fred_orders import SHARES, Asked, Way, distances, mixture, show


class Topics:
    """An embedder that reads a text's number and topic."""

    def embed(self, texts: list[str]) -> np.ndarray:
        rows = []
        for text in texts:
            topic, number = text.split()
            row = np.random.default_rng(int(number)).normal(scale=0.1, size=40)
            row[int(topic)] += 0.5
            rows.append(row / np.linalg.norm(row))
        return np.array(rows, dtype=np.float32)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Users, a near corpus and the second group about topic 0, the other groups about others."""
    monkeypatch.setattr(fred_orders, "DRAWS", 5)
    monkeypatch.setattr(fred_orders, "MIXED", 50)
    monkeypatch.setattr(fred_orders, "RECORDS", 60)

    def made(topic: int, first: int, count: int, per_owner: int) -> Set:
        texts = [f"{topic} {first + number}" for number in range(count)]
        return Set(texts, np.arange(count) // per_owner, None)

    store(tmp_path, "abstracts-users", made(0, 0, 120, 2), Topics())
    store(tmp_path, "abstracts-near", made(0, 1000, 100, 1), Topics())
    for number, group in enumerate(GROUPS):
        store(
            tmp_path,
            f"public-{group}",
            made((number - 1) % 5, 2000 + 100 * number, 60, 1),
            Topics(),
        )
    return tmp_path


def test_distances_and_their_tables(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(distances(work, ["abstracts"]))
    assert [row["order"] for row in rows] == ["F1", "F2"] * 3 + ["F3"] * 4
    first = rows[0]
    assert min(first["exact"], key=lambda name: first["exact"][name]) == GROUPS[1]
    assert first["users"] == 60
    assert all(len(drawn) == 5 for drawn in first["draws"].values())
    # More of the near corpus is nearer, without noise at every step.
    exact = [rows[1]["exact"][str(share)] for share in SHARES]
    assert exact[0] > exact[1] > exact[2] > exact[-1]
    written = "".join(json.dumps(row) + "\n" for row in rows)
    (work / "distances-abstracts.jsonl").write_text(written)
    assert "0 9" not in written  # no text
    capsys.readouterr()
    show(work)
    shown = capsys.readouterr().out
    assert "F1: draws of 20" in shown
    assert f"exact order {GROUPS[1]} < " in shown
    assert "times five draws do not overlap" in shown


def test_the_printed_noise_is_less_for_a_mean_and_more_for_a_covariance(work: Path) -> None:
    users, public = load(work, "abstracts-users"), load(work, "public-docs").embeddings
    ways = (
        Way("right", 0, "record", True, sentences=150_000),
        Way("printed", 0, "record", True, True, 150_000),
    )
    right, printed = (
        Asked(way, users.embeddings, users.owners, public, delta=2e-6) for way in ways
    )
    assert right.count == printed.count == 150_000
    assert right.multipliers[0] == right.multipliers[1] == pytest.approx(9.26, abs=0.01)
    k = 17.66
    assert printed.multipliers == pytest.approx([2 * k / 150_000**0.5, k * 3000**0.5], rel=1e-3)


def test_a_mixture_has_its_share() -> None:
    near, far = np.ones((50, 2)), np.zeros((50, 2))
    assert mixture(near, far, 40, 10).sum() == 8
    assert len(mixture(near, far, 100, 10)) == 10
