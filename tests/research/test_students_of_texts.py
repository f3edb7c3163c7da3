"""Other students of texts: trained, measured on a comparison's users, and not twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.files import read_json_lines
from flower_privsyn.training.causal import CausalTraining
from research.students_of_texts import main

TEXTS = [
    f"The court of appeal held its hearing number {number} in open session." for number in "abcd"
]


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """What a comparison leaves, as far as it is read."""
    folder = tmp_path / "comparison"
    (folder / "data").mkdir(parents=True)
    training = vars(CausalTraining(learning_rate=1e-3, batch_size=2, learn_ends=False))
    (folder / "compare.json").write_text(json.dumps({"fixed": {"training": training}}))
    for name, texts in (("private", TEXTS[:2]), ("held_out", TEXTS[2:])):
        rows = [{"client_id": str(number), "text": text} for number, text in enumerate(texts)]
        (folder / "data" / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    return folder


def test_students_learn_what_they_are_given(comparison: Path, tmp_path: Path, capsys: Any) -> None:
    file, results = tmp_path / "texts.jsonl", tmp_path / "results.jsonl"
    made = [TEXTS[1], "Rain fell on the old town all week.", "She sells boats in winter, too."]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in made))
    words = [str(comparison), "--texts", "none", "private", f"made={file}", "--steps", "2"]
    words += ["--results", str(results)]
    assert main(words) == 0
    lines = {line["texts"]: line for line in read_json_lines(results)}
    assert [(name, line["rows"], line["steps"]) for name, line in lines.items()] == [
        ("none", 0, 0),
        ("private", 2, 2),
        ("made", 3, 2),
    ]
    # One of the three is a user's own.
    assert lines["made"]["copies"] == pytest.approx(1 / 3)
    assert lines["private"]["bits_per_byte"] < lines["none"]["bits_per_byte"]
    assert len({line["bits_per_byte"] for line in lines.values()}) == 3
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out == ""
    taught = ["--texts", f"made={file}", "--teacher", "privsyn-lm", "--teacher-steps", "1"]
    assert main([str(comparison), *taught, "--steps", "2", "--results", str(results)]) == 0
    (*_, last) = read_json_lines(results)
    assert last["teacher"] == "privsyn-lm"
    assert last["bits_per_byte"] != lines["made"]["bits_per_byte"]


def test_texts_that_are_not_there_are_named(comparison: Path, tmp_path: Path, capsys: Any) -> None:
    words = [str(comparison), "--texts", "privat", "--results", str(tmp_path / "results.jsonl")]
    assert main(words) == 2
    assert '--texts privat= has no texts, and is neither "private" nor "none"' in (
        capsys.readouterr().err
    )
