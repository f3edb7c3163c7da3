"""A run's stages reach people: lines in a file, bars in a terminal."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from flower_privsyn import clock
from flower_privsyn.host.terminal import Bars, Lines, follower


def _stage(name: str, done: int, total: int | None, finished: bool = False) -> dict[str, Any]:
    return {"name": name, "done": done, "total": total, "finished": finished}


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still but for a second before every look."""
    moments = iter(range(10, 10_000))
    monkeypatch.setattr(clock, "seconds", lambda: float(next(moments)))


def test_lines_show_every_tenth_and_the_end_once() -> None:
    stream = io.StringIO()
    with Lines(stream) as lines:
        lines([_stage("start", 0, None)])
        for done in range(0, 101, 5):
            lines([_stage("start", 0, None, finished=True), _stage("vary", done, 100)])
        ended = [_stage("start", 0, None, finished=True), _stage("vary", 100, 100, finished=True)]
        lines(ended)
        lines(ended)
    shown = stream.getvalue().splitlines()
    assert shown[0] == "start done in 2.0 s"
    assert shown[1:11] == [f"vary {tenth}0/100 ({tenth}0 %)" for tenth in range(1, 10)] + [
        "vary 100/100 (100 %)"
    ]
    assert shown[11:] == ["vary done (100) in 12.0 s"]


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
