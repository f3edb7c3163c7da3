"""`privsyn expand --anew`: what is left of a copy whose making ended early."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import expand, main
from flower_privsyn.cli import run as run_command
from flower_privsyn.cli.output import FAILED, REFUSED
from flower_privsyn.cli.signals import Stopped
from flower_privsyn.errors import ConfigError
from flower_privsyn.run import RunDirectory


@pytest.mark.parametrize(
    ("ending", "stays"),
    [
        (REFUSED, False),
        (ConfigError("no"), False),
        (FAILED, True),
        (KeyboardInterrupt(), True),
        (Stopped(), True),
    ],
    ids=["refused", "wrong", "failed", "interrupted", "stopped"],
)
def test_only_a_refused_copy_is_removed(
    ending: Any, stays: bool, run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an interrupted one it was said how it is continued."""

    def copied(_: RunDirectory, output: Path) -> RunDirectory:
        made = RunDirectory.create(output, config={}, strategy="JointSketch")
        made.owner.make()
        made.unlock()
        return made

    def resume(*_: Any) -> int:
        if isinstance(ending, BaseException):
            raise ending
        return int(ending)

    monkeypatch.setattr(expand, "copy_released", copied)
    monkeypatch.setattr(run_command, "resume", resume)
    words = ["expand", str(run.path), "--anew", str(tmp_path / "copy")]
    with contextlib.suppress(KeyboardInterrupt, Stopped):
        assert main(words) != 0
    assert (tmp_path / "copy").exists() == (tmp_path / "copy.owner").exists() == stays
