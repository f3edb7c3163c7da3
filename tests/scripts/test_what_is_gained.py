"""Where the tokens that a model predicts belong, and how much of a gap is closed there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.models.pretrained import load_pretrained
from scripts.experiments import what_is_gained

SIZE = 3000
BEGIN = 0


def test_a_token_belongs_to_its_pair_its_passage_and_its_rank() -> None:
    windows = [[BEGIN, 10, 2500, 10, 700, 10], [BEGIN, 2500, 700]]
    counts = np.arange(SIZE, 0, -1)  # token 0 is the commonest
    masks = what_is_gained.kinds(windows, np.array([10 * SIZE + 2500, 700 * SIZE + 10]), counts)
    # Predicted: 2500, 10, 700, 10 of the first window, 700 of the second.
    expected = {
        "all": [1, 1, 1, 1, 1],
        "in a pair that was asked about": [1, 0, 0, 1, 0],
        "in another pair": [0, 1, 1, 0, 1],
        "said before in the passage": [0, 0, 0, 0, 0],  # 10 is in every text
        "not said before": [1, 0, 1, 0, 1],
        "one of the 200 commonest tokens": [0, 1, 0, 1, 0],
        "one of the next 1,800": [0, 0, 1, 0, 1],
        "a rarer one": [1, 0, 0, 0, 0],
    }
    assert {name: mask.astype(int).tolist() for name, mask in masks.items()} == expected
    again = what_is_gained.kinds([[BEGIN, 700, 5, 700]], np.array([], dtype=np.int64), counts)
    assert again["said before in the passage"].tolist() == [False, True]


def test_the_gap_is_between_the_public_model_and_private_text() -> None:
    everything = {"all": np.ones(4, dtype=np.bool_)}
    found = [
        (np.array([True] * hits + [False] * (4 - hits)), np.full(4, nats * np.log(2)))
        for hits, nats in ((1, 5.0), (2, 4.5), (3, 3.0))
    ]
    row = list(what_is_gained.lines(everything, found))[-1]
    assert row == "| all | 100 | 25.00 | 50.00 | 75.00 | 50 | 5.000 | 4.500 | 3.000 | 25 |"


def test_a_run_is_measured_beside_the_public_model_and_the_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "privsyn-tiny"
    network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    run = tmp_path / "run"
    for folder in (run / "models" / "final", tmp_path / "ceiling"):
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    (run / "config.json").write_text(json.dumps({"config": {"model": model}}))
    np.save(run / "bigrams.npy", np.arange(5 * len(tokenizer)))
    data = tmp_path / "data"
    data.mkdir()
    for name in ("held_out", "private"):
        text = "The committee will come to order. The committee is adjourned. " * 12
        (data / f"{name}.jsonl").write_text(json.dumps({"client_id": "a", "text": text}) + "\n")
    words = [str(run), "--data", str(data), "--ceiling", str(tmp_path / "ceiling")]
    monkeypatch.setattr(sys, "argv", ["what_is_gained", *words])
    what_is_gained.main()
    shown = capsys.readouterr().out
    assert shown.startswith(f"> {STAMP}")
    (row,) = (line for line in shown.splitlines() if line.startswith("| all "))
    cells = [cell.strip() for cell in row.split("|")[3:-1]]
    assert cells[0] == cells[1] == cells[2]
    assert cells[3] == "-"
    assert float(cells[0]) > 5
