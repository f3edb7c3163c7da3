"""Texts are measured against people who took no part, and not twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.files import read_json_lines
from flower_privsyn.training.causal_settings import CausalTraining
from scripts.experiments.distances_of_texts import main

COURT = [f"The court of appeal held hearing number {n} in open session." for n in "abcdefgh"]
SEA = [f"The ship of pier {n} sailed for the island before the storm." for n in "abcdefgh"]


def lines(file: Path, texts: list[str]) -> Path:
    rows = [{"client_id": str(number), "text": text} for number, text in enumerate(texts)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_what_is_like_the_users_is_nearer(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "comparison"
    lines(folder / "data" / "private.jsonl", COURT[:2])
    lines(folder / "data" / "held_out.jsonl", COURT[2:])
    training = vars(CausalTraining(learn_ends=False))
    (folder / "compare.json").write_text(json.dumps({"fixed": {"training": training}}))
    near, far = lines(tmp_path / "near.jsonl", COURT), lines(tmp_path / "far.jsonl", SEA)
    results = tmp_path / "results.jsonl"
    words = [str(folder), "--texts", f"near={near}", f"far={far}", "--most", "6"]
    assert main([*words, "--results", str(results)]) == 0
    found = {row["texts"]: row for row in read_json_lines(results)}
    assert found["near"]["mmd_squared"] < 0.1 < found["far"]["mmd_squared"]
    assert found["near"]["frechet_squared"] < found["far"]["frechet_squared"]
    assert found["far"]["self_similarity"] == pytest.approx(0.9, abs=0.1)
    assert found["far"]["words"] == 12
    capsys.readouterr()
    assert main([*words, "--results", str(results)]) == 0
    assert capsys.readouterr().out == ""
    assert main([str(folder), "--texts", "nothing", "--results", str(results)]) == 2
    assert "nothing" in capsys.readouterr().err
