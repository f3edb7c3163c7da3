"""A run's stages reach people."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flower_privsyn import files
from flower_privsyn.cli.terminal import Follower


def _stage(name: str, done: int, total: int | None, finished: bool = False) -> dict[str, Any]:
    return {"name": name, "done": done, "total": total, "finished": finished}


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still but for a second before every look."""
    moments = iter(range(10, 10_000))
    monkeypatch.setattr(files, "seconds", lambda: float(next(moments)))


def test_lines_say_what_ends_and_what_begins_without_a_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start, ended = _stage("start", 0, None), _stage("start", 0, None, finished=True)
    lines = Follower()
    lines([start])
    lines([start])
    for done in (0, 50, 100):
        lines([ended, _stage("vary", done, 100)])
    for _ in range(2):
        lines([ended, _stage("vary", 100, 100, finished=True)])
    shown = capsys.readouterr().err
    assert [re.sub(r"[\d.]+ s", "N s", line) for line in shown.splitlines()] == [
        "start ...",
        "start done in N s",
        "vary done (100) in N s",
    ]
