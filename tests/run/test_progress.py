"""RunProgress reaches whoever follows a run, through a file that is always whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.progress import RunProgress, read_progress


def test_stages_are_written_as_they_open_and_close(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress = RunProgress(path)
    with progress.stage("embed candidates", 10) as stage:
        assert read_progress(path)[0]["done"] == 0
        stage.update(4)
        stage.update()
    (written,) = read_progress(path)
    assert (written["name"], written["done"], written["total"]) == ("embed candidates", 5, 10)
    assert written == {**written, "finished": True, "failed": False, "note": False}
    assert set(written) == {"name", "total", "done", "finished", "failed", "note"}
    with pytest.raises(RuntimeError), progress.stage("vote") as stage:
        raise RuntimeError
    assert [entry["failed"] for entry in read_progress(path)] == [False, True]
    assert [entry.name for entry in tmp_path.iterdir()] == ["progress.json"]


def test_a_full_or_missing_disk_does_not_stop_the_work(tmp_path: Path) -> None:
    with RunProgress(tmp_path / "gone" / "progress.json").stage("embed", 1) as stage:
        stage.update()
    assert stage.done == 1
