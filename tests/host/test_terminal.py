"""A run's stages reach people: lines in a file, bars in a terminal."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from flower_privsyn import clock
from flower_privsyn.host.terminal import Bars, Lines, follower, steps_of


def _stage(name: str, done: int, total: int | None, finished: bool = False) -> dict[str, Any]:
    return {"name": name, "done": done, "total": total, "finished": finished}


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still but for a second before every look."""
    moments = iter(range(10, 10_000))
    monkeypatch.setattr(clock, "seconds", lambda: float(next(moments)))


def test_lines_say_what_ends_and_what_begins_without_a_number() -> None:
    stream = io.StringIO()
    start, ended = _stage("start", 0, None), _stage("start", 0, None, finished=True)
    with Lines(stream) as lines:
        lines([start])
        lines([start])
        for done in (0, 50, 100):
            lines([ended, _stage("vary", done, 100)])
        for _ in range(2):
            lines([ended, _stage("vary", 100, 100, finished=True)])
    assert [re.sub(r"[\d.]+ s", "N s", line) for line in stream.getvalue().splitlines()] == [
        "start ...",
        "start done in N s",
        "vary done (100) in N s",
    ]


def test_nobody_waits_long_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "seconds", lambda: now[0])
    stream = io.StringIO()
    lines = Lines(stream)
    for second in range(100):
        now[0] = 100.0 + second
        lines([_stage("read", 0, None) if second < 50 else _stage("vary", second, 200)])
    shown = stream.getvalue().splitlines()
    assert shown[0] == "read ..."
    assert shown[1:3] == ["read, 15 s so far", "read, 30 s so far"]
    assert shown[-1] == "vary 90/200 (45 %), 90 s so far"
    assert len(shown) == 7


def test_an_unknown_number_of_steps_is_not_shown() -> None:
    assert steps_of(0, None) == ""
    assert steps_of(1500, None) == "1,500"
    assert steps_of(0, 2000) == "0/2,000"


def test_the_time_of_a_stage_nobody_saw_begin_is_not_guessed() -> None:
    stream = io.StringIO()
    Lines(stream)([_stage("start", 0, None, finished=True)])
    assert stream.getvalue() == "start done\n"


def test_a_pipe_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(follower(), Lines)


def test_bars_print_what_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as bars:
        bars([_stage("[vary]", 3, 10)])
        bars([_stage("[vary]", 10, 10, finished=True), _stage("expand", 1, None)])
        bars([_stage("[vary]", 10, 10, finished=True), _stage("expand", 1, None, finished=True)])
    shown = capsys.readouterr().err
    assert "[vary] done (10) in 2.0 s" in shown
    assert "expand done (1) in 2.0 s" in shown
