"""Ranking public text by releases that tell much and little."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from flower_privsyn.strategies import JointSketchConfig
from scripts.experiments.ask_once_trust import Ranking
from scripts.experiments.ask_once_tuning import Split

ROOT = Path(__file__).parents[2]


def test_what_is_trusted_finds_what_is_true(tmp_path: Path) -> None:
    spoken = ROOT / "examples" / "ask-once" / "ask_once" / "data" / "users.jsonl"
    records = [json.loads(line) for line in spoken.read_text("utf-8").splitlines()]
    texts = list({record["client_id"]: record["text"] for record in records}.values())
    with gzip.open(tmp_path / "public-0.jsonl.gz", "wt", encoding="utf-8") as file:
        for number, text in enumerate(texts[:520]):
            group = "users" if number % 2 else "public"
            file.write(json.dumps({"text": text, "group": group}) + "\n")
    split = Split(tmp_path, "users", users=100, most_public=250, work=tmp_path)
    assert split.first(40).num_users == 40
    ranking = Ranking(split, JointSketchConfig(epsilon=1.0, num_bigrams=0, bigram_share=0.0))
    trust, known, _, hoped, rare, trusted, _ = ranking.measure(100, 100.0, 0)
    assert trust > 0.3
    assert min(known, hoped, trusted) > 0.7
    little, _, _, _, much_rarer, as_trusted, rarer = ranking.measure(40, 0.1, 0)
    assert little < 0.1 * trust
    # With nothing known, text of rare words comes first, unless that is not trusted.
    assert much_rarer > rare
    assert much_rarer > rarer + 0.5
    assert as_trusted < trusted
