"""The control of a trained teacher reads rows that nobody chose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.files import located
from research.random_teacher import main

TEXTS = [
    f"The court of appeal held its hearing number {number} in open session." for number in "abc"
]


def test_a_model_learns_from_rows_that_are_drawn(tmp_path: Path, capsys: Any) -> None:
    from flower_privsyn.models.pretrained import load_pretrained

    public, output = tmp_path / "public.jsonl", tmp_path / "teacher"
    public.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    words = [str(public), str(output), "--model", "privsyn-tiny", "--rows", "2", "--steps", "1"]
    assert main(words) == 0
    assert "1 steps on 2 of 3 rows" in capsys.readouterr().out
    before, after = (
        load_pretrained(name, kind="causal", dtype="float32", device="cpu")[0].state_dict()
        for name in (located("privsyn-tiny"), str(output))
    )
    assert before.keys() == after.keys()
    assert any(not before[key].equal(after[key]) for key in before)


def test_text_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.jsonl"
    assert main([str(missing), str(tmp_path / "teacher")]) == 2
    assert str(missing) in capsys.readouterr().err
