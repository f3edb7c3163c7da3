"""What a line says of some work, and when."""

from __future__ import annotations

import re

import pytest

from flower_privsyn import files
from flower_privsyn.progress import Progress


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still but for a second before every look."""
    moments = iter(range(10, 10_000))
    monkeypatch.setattr(files, "seconds", lambda: float(next(moments)))


def test_lines_say_what_ends_and_what_begins_without_a_number() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    with progress.stage("start"):
        pass
    with progress.stage("vary", 100) as stage:
        for done in range(1, 101):
            stage.reach(done, 100)
    with pytest.raises(RuntimeError), progress.stage("vote", 3):
        raise RuntimeError
    assert [re.sub(r"-?[\d.]+ s", "N s", line) for line in lines if "so far" not in line] == [
        "start ...",
        "start done in N s",
        "vary done (100) in N s",
        "vote stopped in N s",
    ]
    assert any(re.fullmatch(r"vary \d+/100 \(\d+ %\), -?\d+ s so far", line) for line in lines)
    assert len(lines) < 12
