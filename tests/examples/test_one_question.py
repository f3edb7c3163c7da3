"""The quickstart's question with the bundled models, whole: minutes long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.summary import run_costs
from flower_privsyn.run import RunDirectory

APP = Path(__file__).parents[2] / "examples" / "quickstart"
BUNDLED = ("synthesis=selected", "generator=privsyn-lm", "teacher=privsyn-lm", "student-steps=200")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_student_is_better_after_one_upload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = APP / "quickstart" / "data" / "users.jsonl"
    words = ["run", str(APP), "--run-dir", str(tmp_path / "run"), "--evaluate", str(users)]
    settings = [word for setting in BUNDLED for word in ("--set", setting)]
    assert main([*words, *settings]) == 0
    shown = capsys.readouterr().out
    assert STAMP in " ".join(shown.split())
    assert "the same steps on random public text" in shown
    run = RunDirectory.open(tmp_path / "run")
    lines = [json.loads(line) for line in run.ledger_file.read_text().splitlines()]
    (release,) = [line for line in lines if line["event"] == "release"]
    assert release["epsilon_release"] == pytest.approx(1.0, abs=1e-3)
    costs = run_costs(run)
    assert costs is not None
    assert (costs["rounds"], costs["floats_up"]) == (1, 8192 + 16_384)
    assert costs["bytes_up"] < 100_000

    folder = run.path.with_name(f"{run.path.name}.evaluation")
    found = json.loads((folder / "evaluation.json").read_text())
    before, after = found["learned"]["before"], found["learned"]["release"]
    assert after["next_token_accuracy"]["value"] > before["next_token_accuracy"]["value"]
    assert after["bits_per_byte"]["value"] < before["bits_per_byte"]["value"]
