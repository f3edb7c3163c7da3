"""What is known of a run from its files, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.report.summary import open_run
from flower_privsyn.run import RunDirectory
from tests.support.ledgers import write_chain


def test_inspect_reads_everything_from_the_files(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(run.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["strategy"] == "POPri"
    assert facts["status"] == "finished"
    assert facts["error"] is None
    assert facts["rounds_finished"] == [1, 2]
    assert facts["releases"] == 2
    assert facts["users"] == 300
    assert (facts["epsilon_release"], facts["epsilon_known_cohorts"]) == (2.5, 5.0)
    assert (facts["delta"], facts["epsilon_budget"]) == (3e-6, 7.58)
    assert facts["synthetic_texts"] == 5
    assert facts["samples"] == [f"[b]text {n}[/b]" for n in range(5)]


def test_inspect_tells_an_interrupted_run_from_a_running_one(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.lock()
    run.mark_running()
    assert open_run(run.path).status == "running"
    run.unlock()
    # As after a kill -9: the lock file names a process that is not there any more.
    (run.path / ".lock").write_text('{"pid": 1073741824, "started": "1"}\n')
    assert open_run(run.path).status == "interrupted"
    assert main(["inspect", str(run.path)]) == 0
    assert "continue" in capsys.readouterr().out


def test_a_run_without_enough_noise_is_called_not_private(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"event": "release", "round": 1, "epsilon_release": None, "epsilon_known_cohorts": None}
    write_chain(run.ledger_file, {"event": "opened"}, line)
    assert main(["inspect", str(run.path)]) == 0
    assert "Not private: 1 release" in capsys.readouterr().out


def test_inspect_says_that_a_round_that_was_killed_will_be_charged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    write_chain(run.ledger_file, {"event": "opened"}, {"event": "started", "round": 1})
    assert main(["inspect", str(run.path)]) == 0
    assert "is lost" not in capsys.readouterr().out  # it is at work
    run.unlock()
    (run.path / ".lock").write_text('{"pid": 1073741824, "started": "1"}\n')
    assert open_run(run.path).rounds_open == [1]
    assert main(["inspect", str(run.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "nothing released round 1 was begun and is lost: charged as soon as the run goes" in shown
    )
