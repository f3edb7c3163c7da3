"""`privsyn stop`: which run is asked to end, and what is said where none is at work."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.run import show_outcome
from flower_privsyn.host.launch import Outcome
from flower_privsyn.runs import RunDirectory


def test_the_run_of_a_comparison_or_a_grid_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("out", "grid/users-300"):
        folder = tmp_path / place
        for name in ("first", "second"):
            RunDirectory.create(folder / "cells" / name / "run", config={}).unlock()
        (tmp_path / place.split("/")[0] / "compare.json").write_text("{}")
        at_work = RunDirectory.open(folder / "cells" / "second" / "run")
        at_work.lock()
        at_work.mark_running()
        assert main(["stop", str(tmp_path / place.split("/")[0])]) == 0
        assert f"The run in {at_work.path} ends before its next round." in capsys.readouterr().out
        assert at_work.owner.stop_file.exists()
        assert at_work.owner.path.stat().st_mode & 0o777 == 0o700
        assert not (folder / "cells" / "first" / "run.owner" / "stop").exists()
        at_work.mark_finished()
        at_work.unlock()
        assert main(["stop", str(tmp_path / place.split("/")[0])]) == 2
        assert "No run of the comparison in" in capsys.readouterr().err


def test_where_nothing_is_at_work_nothing_is_written(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", str(run.path)]) == 2
    assert f"No process of this machine works on the run in {run.path}" in capsys.readouterr().err
    assert not run.owner.stop_file.exists()
    assert main(["stop", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_the_end_of_a_stopped_run_is_an_interruption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RunDirectory.create(tmp_path / "run", config={}).path
    sentence = "Stopped before round 3 of 8, as was asked: nothing is lost"
    assert show_outcome(Outcome(path=path, error=sentence)) == 130
    assert capsys.readouterr().err == f"Run directory: {path}\nprivsyn: {sentence}\n"
