"""Where a run goes that was given no folder."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from flower_privsyn.environment import RUNS_FOLDER
from flower_privsyn.run import directory as runs


def test_default_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUNS_FOLDER, str(tmp_path))
    path = runs.default_run_directory("pre text/quickstart")
    assert path.parent == tmp_path
    assert path.name.startswith("pre-text-quickstart-")
    assert not path.exists()
    path.mkdir()
    assert runs.new_run_path(tmp_path, "pre text/quickstart") != path
    monkeypatch.delenv(RUNS_FOLDER)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs.default_run_directory("app").parent == tmp_path / "privsyn-runs"


def test_a_user_without_a_home_may_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert runs.RunDirectory.create(tmp_path / "run", config={}).status == "running"
