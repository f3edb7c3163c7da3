"""Progress reaches whoever follows a run, through a file that is always whole."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from flower_privsyn import clock as clock_module
from flower_privsyn.environment import SUPERVISOR_PID
from flower_privsyn.host.progress import NullProgress, Progress, describe, read_progress


def test_stages_are_written_as_they_open_and_close(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress = Progress(path)
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


def test_many_updates_are_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(clock_module, "seconds", lambda: clock[0])
    writes = []
    monkeypatch.setattr(Progress, "_write", _counting(Progress._write, writes))
    progress = Progress(tmp_path / "progress.json", log=False)
    with progress.stage("vary", 2000) as stage:
        for _ in range(2000):  # two seconds in steps of a millisecond
            clock[0] += 0.001
            stage.update()
    assert len(writes) <= 2 * 5 + 2


def _counting(original, writes):  # type: ignore[no-untyped-def]
    def write(self):  # type: ignore[no-untyped-def]
        writes.append(1)
        original(self)

    return write


def test_the_log_gets_a_line_every_few_seconds_when_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(clock_module, "seconds", lambda: clock[0])
    monkeypatch.delenv(SUPERVISOR_PID, raising=False)
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    with Progress(tmp_path / "progress.json").stage("expand", 1200) as stage:
        for _ in range(12):
            clock[0] += 1.0
            stage.update(100)
    assert lines[:3] == [
        "expand 100/1,200 (8 %)",
        "expand 600/1,200 (50 %)",
        "expand 1,100/1,200 (91 %)",
    ]
    assert lines[3] == "expand done (1,200) in 12.0 s"

    lines.clear()
    monkeypatch.setenv(SUPERVISOR_PID, "1")
    with Progress(tmp_path / "progress.json").stage("expand", 1):
        pass
    assert lines == []


def test_a_full_or_missing_disk_does_not_stop_the_work(tmp_path: Path) -> None:
    with Progress(tmp_path / "gone" / "progress.json").stage("embed", 1) as stage:
        stage.update()
    assert stage.done == 1


def test_unreadable_files_are_no_progress(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    assert read_progress(path) == []
    for text in ("{", "[]", '{"stages": 3}', json.dumps({"stages": [1]})):
        path.write_text(text)
        assert read_progress(path) == []


def test_null_progress_counts() -> None:
    with NullProgress().stage("embed", 3) as stage:
        stage.update(3)
    assert stage.done == 3


def test_describe() -> None:
    stage = {"name": "embed", "total": None, "done": 0, "finished": False}
    assert describe(stage) == "embed"
    assert describe(stage | {"done": 1500}) == "embed 1,500"
    assert describe(stage | {"total": 4, "done": 1}) == "embed 1/4 (25 %)"
    assert describe(stage | {"done": 4, "finished": True}, 2.0) == "embed done (4) in 2.0 s"
    assert describe(stage | {"finished": True, "failed": True}) == "embed stopped"
