"""A run's stages reach people: lines in a file, bars in a terminal."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from flower_privsyn import files
from flower_privsyn.cli.terminal import Follower, follower


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


def test_bars_print_what_has_ended(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with follower() as bars:
        bars([_stage("[vary]", 3, 10)])
        bars([_stage("[vary]", 10, 10, finished=True), _stage("expand", 1, None)])
        bars([_stage("[vary]", 10, 10, finished=True), _stage("expand", 1, None, finished=True)])
    shown = capsys.readouterr().err
    assert "[vary] done (10) in 1.0 s" in shown
    assert "expand done (1) in 1.0 s" in shown
