"""Ranking public text by a mean embedding as well: another choice, measured on who is held out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from flower_privsyn.strategies import JointSketchConfig
from scripts.experiments.ask_once_embedding import measure
from scripts.experiments.ask_once_tuning import Split

ROOT = Path(__file__).parents[2]


def test_every_weight_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoken = ROOT / "examples" / "ask-once" / "ask_once" / "data" / "users.jsonl"
    records = [json.loads(line) for line in spoken.read_text("utf-8").splitlines()]
    by_user = {record["client_id"]: record["text"].split() for record in records}
    texts = [" ".join(words[:60]) for words in by_user.values()]
    with gzip.open(tmp_path / "public-0.jsonl.gz", "wt", encoding="utf-8") as file:
        for text in texts[170:260]:
            file.write(json.dumps({"text": text, "group": "spoken"}) + "\n")
    users = tmp_path / "users.jsonl"
    users.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:170]), "utf-8")
    split = Split(tmp_path, str(users), users=20, most_public=90, work=tmp_path)
    config = JointSketchConfig(
        epsilon=1.0,
        select_share=1e-9,
        least_selected=10,
        num_bigrams=0,
        bigram_share=0.0,
        student_steps=8,
        student_batch_size=2,
        teacher_weight=0.0,
    )
    measure(split, config, epsilon=7.0, weights=[0.0, 3.0])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["seed 0, weight 0", "seed 0, weight 3"]
    figures = [line.split(": ")[1] for line in lines]
    # Other rows were chosen, and a student of them says other things.
    assert figures[0] != figures[1]
    assert all(0 < float(figure.split(" %")[0]) < 100 for figure in figures)
