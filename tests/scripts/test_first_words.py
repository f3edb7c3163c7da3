"""Cutting users to their first words."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_of_every_user_the_first_words_are_left(tmp_path: Path) -> None:
    texts = [
        ("ann", "one two\nthree"),
        ("bob", "just this"),
        ("ann", "four  five six"),
        ("ann", "x"),
    ]
    for number, part in enumerate((texts[:2], texts[2:])):
        with gzip.open(tmp_path / f"{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            for user, text in part:
                file.write(json.dumps({"client_id": user, "text": text, "date": "2020"}) + "\n")
    script = ROOT / "scripts" / "experiments" / "first_words.py"
    files = [str(tmp_path / f"{number}.jsonl.gz") for number in (0, 1)]
    output = tmp_path / "out.jsonl.gz"
    subprocess.run(
        [sys.executable, str(script), *files, "--words", "5", "--output", str(output)], check=True
    )
    with gzip.open(output, "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    assert [(line["client_id"], line["text"]) for line in found] == [
        ("ann", "one two three"),
        ("bob", "just this"),
        ("ann", "four five"),
    ]
    assert {line["date"] for line in found} == {"2020"}
