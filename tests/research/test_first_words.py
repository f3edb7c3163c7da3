"""Cutting users to their first words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from flower_privsyn.comparison.people import sealed
from research.first_words import main


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
    files = [str(tmp_path / f"{number}.jsonl.gz") for number in (0, 1)]
    output = tmp_path / "out.jsonl.gz"
    words = [*files, "--words", "5", "--output", str(output)]
    found = written(words, output)
    assert [(line["client_id"], line["text"]) for line in found] == [
        ("ann", "one two three"),
        ("bob", "just this"),
        ("ann", "four five"),
    ]
    assert {line["date"] for line in found} == {"2020"}

    # Of a sample that was looked at, only those are left out who are sealed.
    sealed_one = next(name for name in map(str, range(1000)) if sealed([name])[0])
    sample = tmp_path / "sample.jsonl"
    rows = [{"client_id": user, "text": "x"} for user in ("ann", sealed_one)]
    sample.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with gzip.open(tmp_path / "1.jsonl.gz", "at", encoding="utf-8") as file:
        file.write(json.dumps({"client_id": sealed_one, "text": "seen", "date": "2020"}) + "\n")
    assert sealed_one in {line["client_id"] for line in written(words, output)}
    assert written([*words, "--without-sealed-of", str(sample)], output) == found


def written(words: list[str], output: Path) -> list[dict[str, str]]:
    """What the script writes."""
    main(words)
    with gzip.open(output, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
