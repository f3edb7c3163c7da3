"""Students of comparisons on people whom none of them has opened: which people, which models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.catalogue import compared
from flower_privsyn.comparison.people import sealed
from flower_privsyn.files import read_json_lines
from flower_privsyn.training.causal import CausalTraining, fine_tune
from research.unopened_people import main

IDS = [name for name in (f"person-{number}" for number in range(200)) if sealed([name])[0]]
TEXT = "The court of appeal held hearing number {} in open session, and the record was kept."


def write_users(file: Path, ids: Sequence[str]) -> None:
    rows = [{"client_id": name, "text": TEXT.format(name)} for name in ids]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def cell(method: str, epsilon: float, seed: int, *, taught: bool = False) -> dict[str, Any]:
    figures = {"next_token_accuracy": 0.2 + seed / 100, "bits_per_byte": 2.0}
    return {
        "method": method,
        "kind": compared()[method].kind,
        "epsilon": epsilon,
        "seed": seed,
        "folder": f"cells/{method}-eps-{epsilon:g}-seed-{seed}",
        "status": "finished",
        "quality": figures,
        "distilled": figures if taught else None,
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Users, of whom some are sealed, and the first four of those were opened."""
    file = tmp_path / "users.jsonl"
    write_users(file, [f"person-{number}" for number in range(200)])
    return file


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """What a comparison leaves, as far as it is read: a student of text, and one of a run."""
    folder = tmp_path / "comparison"
    (folder / "data").mkdir(parents=True)
    write_users(folder / "data" / "held_out.jsonl", IDS[:4])
    cells = [
        cell("public-only", 0.0, 0),
        cell("pre-text", 1.0, 0, taught=True),
        cell("dp-ftrl", 1.0, 0),
        cell("dp-ftrl", 1.0, 1),
        cell("popri", 1.0, 0) | {"status": "failed"},
    ]
    fixed = {"training": {"max_tokens": 64}}
    document = {"downstream": "privsyn-tiny", "cells": cells, "fixed": fixed}
    (folder / "compare.json").write_text(json.dumps(document))
    places = (
        "pre-text-eps-1-seed-0/downstream",
        "pre-text-eps-1-seed-0/distilled",
        "dp-ftrl-eps-1-seed-0/run/models/final",
        "dp-ftrl-eps-1-seed-1/run/models/final",
    )
    settings = CausalTraining(batch_size=2, max_steps=2, learning_rate=1e-3, train_on_eos=False)
    for place, number in zip(places, count()):
        texts = [TEXT.format(f"{number}-{other}") for other in range(2)]
        output = folder / "cells" / place
        fine_tune("privsyn-tiny", texts, settings=settings, output=output, seed=number)
    return folder


def test_every_finished_model_is_read_once(
    data: Path, comparison: Path, tmp_path: Path, capsys: Any
) -> None:
    results = tmp_path / "results.jsonl"
    words = [str(comparison), "--data", str(data), "--people", "5", "--results", str(results)]
    assert main(words) == 0
    lines = list(read_json_lines(results))
    assert [(line["method"], line["seed"], line["figures"]) for line in lines] == [
        ("public-only", 0, "quality"),
        ("pre-text", 0, "quality"),
        ("pre-text", 0, "distilled"),
        ("dp-ftrl", 0, "quality"),
        ("dp-ftrl", 1, "quality"),
    ]
    # Five models, of which the first never learned such text.
    bits = [line["bits_per_byte"] for line in lines]
    assert len(set(bits)) == 5
    assert bits[0] == max(bits)
    assert {line["people"] for line in lines} == {5}
    printed = capsys.readouterr().out
    assert "| dp-ftrl | 1 | 2 | " in printed
    assert "| 20.50 ± 0.50 | - | - |" in printed
    before = results.read_text()
    assert main(words) == 0
    assert results.read_text() == before
    assert capsys.readouterr().out == printed
