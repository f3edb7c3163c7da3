"""One configuration that begins a run, goes on with it, and gives its result once it has one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from tests.support.federation import rounds_asked, silent
from tests.support.probe import Killed, Probe, killed_in
from tests.support.run_files import contents, releases

Builder = Callable[..., Any]


def test_it_begins_goes_on_and_gives_the_result(
    federation: Builder, config: Builder, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(resume="auto")
    with pytest.raises(Killed):
        killed_in(Probe(settings), 2).start(federation())
    second, grid = Probe(settings), federation()
    whole = second.start(grid)
    assert rounds_asked(grid) == [3]
    before = contents(second.run.path)
    third, grid = Probe(settings), federation()
    with caplog.at_level(logging.INFO):
        result = third.start(grid)
    assert grid.requests == []
    assert contents(third.run.path) == before
    assert len(releases(third.run.path)) == 3
    assert "has finished: this is its result; nobody is asked, nothing is spent" in caplog.text
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
    assert dict(result.train_metrics_clientapp[3]) == dict(whole.train_metrics_clientapp[3])
    assert third.run.state["starts"] == 2


def test_a_finished_run_whose_last_round_was_lost_asks_nobody_again(
    federation: Builder, votes: Builder
) -> None:
    settings = votes(resume="auto")
    Probe(settings).start(federation(tamper=silent(8)))
    again, grid = Probe(settings), federation()
    again.start(grid)
    assert grid.requests == []
    assert len(releases(again.run.path)) == 7


def test_another_run_s_settings_are_refused_and_those_that_come_too_late_are_told(
    federation: Builder, config: Builder, caplog: pytest.LogCaptureFixture
) -> None:
    Probe(config(resume="auto")).start(federation())
    with pytest.raises(ConfigError, match=r"epsilon = 8\.0 differs from the 4\.0"):
        Probe(config(resume="auto", epsilon=8.0)).start(federation())
    Probe(config(resume="auto", round_timeout=60.0)).start(federation())
    assert "round-timeout = 60.0 changes nothing: the run finished with 3600.0" in caplog.text


def test_a_folder_that_depends_on_where_flower_was_started_is_refused(
    federation: Builder, config: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a service that was started from another folder asks everybody again."""
    (tmp_path / "elsewhere").mkdir()
    for folder in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        grid = federation()
        with pytest.raises(ConfigError, match=r"needs an absolute run-dir, got 'mine': from"):
            Probe(config(resume="auto", run_dir="mine")).start(grid)
        assert grid.requests == []
    # `privsyn run` says where the command was typed.
    monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(tmp_path))
    Probe(config(resume="auto", run_dir="mine")).start(federation())
    assert len(releases(tmp_path / "mine")) == 3
