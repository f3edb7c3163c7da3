"""`privsyn data`: figures for the owner, and what is said of bad data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.evaluation.result import STAMP
from tests.support.data_cases import SECRET, lines


def test_what_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be broken over two lines
    rows = [
        *({"client_id": "ann", "text": f"{SECRET} {n}", "date": "2025-03-18"} for n in range(9)),
        {"client_id": "ben", "text": "\u4eca\u5929\u5f88", "date": "soon"},
        {"client_id": "cem", "text": 5},
    ]
    Path("u.jsonl").write_text(lines(rows))
    assert main(["data", "u.jsonl", "--set", "max-samples=4"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"[{STAMP}] For you, who hold this text: do not publish these figures")
    for said in (
        "u.jsonl",
        "users 3, 1 of them without text",
        "texts 10 left out 1 rows without text (null, no string, or a NUL",
        "dates 2025-03-18 to 2025-03-18; 1 texts without",
        "max-samples = 4 (4 of each user) takes 5 and leaves 5 of 1 users",
        "texts 0 0 0 1 9 9 9 3.3",
    ):
        assert said in shown
    assert SECRET not in shown


def test_bad_numbers_and_models_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.csv").write_text("client_id,text\na,b\n")
    describe = ["data", str(tmp_path / "u.csv")]
    for setting in ("max-tokens=0", "max-tokens=few", "max-samples=-1", "user-column=a"):
        assert main([*describe, "--set", setting]) == 2
        assert setting.partition("=")[0] in capsys.readouterr().err
    columns = ("--set", "client-column=text", "--set", "text-column=client_id,text")
    assert main([*describe, "--json", *columns]) == 0
    assert json.loads(capsys.readouterr().out)["characters_per_user"]["most"] == len("a\n\nb")
    assert main([*describe, "--set", f"embedding-model={tmp_path / 'none'}"]) == 2
    assert "none" in capsys.readouterr().err
