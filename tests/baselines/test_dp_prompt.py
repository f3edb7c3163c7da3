"""DP-Prompt's script, for real, on small data."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.run_files import lines

SCRIPT = Path(__file__).parents[2] / "baselines" / "dp-prompt" / "paraphrase.py"


def test_it_writes_and_says_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users, output = tmp_path / "users.jsonl", tmp_path / "told.jsonl"
    rows = [{"client_id": user, "text": "The court ruled."} for user in ("ann", "ann", "bob")]
    users.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [str(SCRIPT), "--data", str(users), "--output", str(output)]
    words += ["--model", "privsyn-tiny", "--max-document-tokens", "16", "--max-new-tokens", "4"]

    def call(*more: str) -> None:
        monkeypatch.setattr(sys, "argv", [*words, *more])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    for _ in range(2):  # the second time there is nothing left to be charged
        call("--epsilon", "40")
        told = capsys.readouterr().out
        assert "3 documents of 2 users: epsilon 40 a document, 80 for the user" in told
        assert "not to be compared with a run's" in told
        assert len(lines(output)) == 3
    ledger = lines(tmp_path / "told.jsonl.ledger.jsonl")
    assert ledger[0]["randomness"] == "os.urandom"
    assert [line["event"] for line in ledger[1:]] == ["paraphrase"] * 3
    with pytest.raises(SystemExit, match="2"):  # no price
        call()
