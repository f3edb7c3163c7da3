"""Apps really run, and whatever is killed, nothing is left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flower_privsyn import locks
from flower_privsyn.errors import ConfigError, FederationError, RunDirectoryError
from flower_privsyn.host import launch
from flower_privsyn.host.app import App, load_app, resolve_config
from flower_privsyn.host.launch import Outcome
from flower_privsyn.locks import is_alive, started_at
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.changes import remember
from tests.support.flower_app import write_app
from tests.support.launched import launched
from tests.support.run_files import times_in
from tests.support.sockets import addresses


def test_the_command_line_s_run_directory_counts_before_the_settings(app: App) -> None:
    values = resolve_config(app)
    assert launch.place_of(app, {**values, "run-dir": "runs/b"}, "") == Path("runs/b").absolute()
    assert launch.place_of(app, {**values, "run-dir": "runs/b"}, "runs/a").name == "a"


@pytest.mark.parametrize("nodes", ["many", 0, 2.5])
def test_an_app_that_chooses_in_its_code_needs_nodes_too(
    app: App, tmp_path: Path, nodes: Any
) -> None:
    values = {**resolve_config(app), "num-nodes": nodes}
    with pytest.raises(ConfigError, match="^num-nodes must be a whole number of at least 1, got"):
        launch.run_app(app, tmp_path / "run", values)
    assert not list(tmp_path.glob("run*"))


def test_a_run_is_resumed_with_what_was_changed(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without starting Flower: what it would be started with."""
    started: list[dict[str, Any]] = []

    def record(app: App, path: Path, asked: dict[str, Any], **rest: Any) -> Outcome:
        started.append({**asked, **rest})
        return Outcome(path=path, error=None)

    monkeypatch.setattr(launch, "_launch", record)
    run = RunDirectory.create(tmp_path / "run", config={"note": "a text"})
    values = resolve_config(app)
    launched(run, app.path, values)
    launch.resume_run(run.path, settings=["note=another", "epsilon=2"])
    assert started[0]["resume"] is True
    assert started[0]["run-config"] == {**values, "note": "another", "epsilon": 2.0}
    # The run takes and records one of them, and is resumed without any word about it.
    remember(run, {"note": "another", "of-the-strategy": 1})
    launch.resume_run(run.path)
    assert started[1]["run-config"] == {**values, "note": "another"}
    assert run.owner.own["settings"] == {"note": "another", "of-the-strategy": 1}
    for setting, said in (
        ("run-dir=x", "run-dir cannot be set here"),
        ("resume=false", "resume cannot be set here"),
        ("notes=x", "did you mean 'note'"),
        ("note", "--set takes key=value"),
    ):
        with pytest.raises(ConfigError, match=said):
            launch.resume_run(run.path, settings=[setting])


@pytest.fixture
def stopped(app: App, tmp_path: Path) -> RunDirectory:
    """A run that `privsyn run` started and that ended without a result."""
    run = RunDirectory.create(tmp_path / "run", config={})
    launched(run, app.path, app.defaults)
    run.mark_failed(FederationError("The nodes are gone."))
    run.unlock()
    return run


ENDED = {"sentence": "", "unexpected": False, "status": 0}
FAILED = {**ENDED, "sentence": "No such bucket."}
KILLED = {"status": -signal.SIGKILL}


def no_room(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_left_of_a_start_without_room(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", no_room)
    with pytest.raises(RunDirectoryError, match="run is full: make room"):
        launch.run_app(app, tmp_path / "run", resolve_config(app))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recorded", "ended", "error"),
    [
        ("failed", ENDED, "The users file is missing."),
        ("finished", ENDED, ""),
        ("finished", FAILED, "The run has finished, and its app has not: No such bucket."),
        ("finished", {"status": 0}, "The run has finished"),
        ("finished", KILLED, "The run has finished"),
        ("running", KILLED, "The ServerApp was killed."),
        ("running", ENDED, "The ServerApp ended early"),
    ],
)
def test_a_run_and_its_app_must_both_end_well(
    app: App, tmp_path: Path, recorded: str, ended: dict[str, Any], error: str
) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    if recorded == "failed":
        run.mark_failed(ConfigError("The users file is missing."))
    elif recorded == "finished":
        run.mark_finished()
    outcome = launch._judge(app, run.path, ended, {})
    assert (outcome.error or "").startswith(error)
    assert (outcome.error is None) == (error == "")
    assert run.status == recorded
    assert outcome.unexpected == (recorded != "failed" and error != "")


def test_a_run_that_its_app_does_not_go_on_with_stays_as_it_was(
    stopped: RunDirectory, app: App
) -> None:
    before = stopped.state
    refused = {**FAILED, "sentence": "epsilon = 3.0 differs from the 1.0 of the run"}
    outcome = launch._judge(app, stopped.path, refused, before)
    assert (outcome.error, outcome.unexpected) == (refused["sentence"], False)
    assert stopped.state == before


def test_without_a_run_directory_the_app_decides(tmp_path: Path) -> None:
    plain = load_app(write_app(tmp_path / "app", run_directory=False))
    assert not plain.takes("run-dir")
    assert launch._judge(plain, tmp_path, ENDED, {}).error is None
    failed = launch._judge(plain, tmp_path, FAILED, {})
    assert (failed.error, failed.unexpected) == ("No such bucket.", False)


def _privsyn(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "flower_privsyn.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        # A test runner in the background ignores Ctrl-C, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def _wait_for_stage(path: Path, name: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    log = RunDirectory(path).owner.log_file
    while not log.is_file() or f"{name} ..." not in log.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _started_by(path: Path) -> dict[int, str]:
    """The processes of the run in a directory: its ServerApp's, and all below it."""
    server = RunDirectory(path).running_process()
    assert server is not None
    below = [one.pid for one in psutil.Process(server).children(recursive=True)]
    return {pid: started_at(pid) for pid in [server, *below]}


def _wait_until_gone(started: dict[int, str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid, when in started.items() if is_alive(pid, when)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_kill_the_command_then_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = write_app(tmp_path / "app")
    path = tmp_path / "run"
    command = _privsyn("run", app, "--run-dir", path, "--set", "behaviour=hang", cwd=tmp_path)
    _wait_for_stage(path, "hang", command)
    started = _started_by(path)
    assert len(started) > 1  # who answers for the node, too
    # Nobody else on this machine, or beyond it, can reach any of them.
    assert addresses(list(started)) == set()

    monkeypatch.setattr(locks, "_PATIENCE_SECONDS", 0.5)
    with pytest.raises(RunDirectoryError, match=f"is in use by process {command.pid}; wait"):
        launch.resume_run(path)
    command.kill()  # not waited for: a command that nobody has collected is dead all the same
    _wait_until_gone(started, seconds=20)
    command.communicate()
    run = RunDirectory.open(path)
    assert run.status == "running"
    assert run.running_process() is None
    run.lock()
    run.unlock()

    (path / "go-on").touch()
    resumed = _privsyn("resume", path, cwd=tmp_path)
    output, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert f"Run directory: {path}\n" in output
    assert f"Synthetic texts: {path / 'synthetic.jsonl'} (5)\n" in output
    assert "ask the nodes done (1) in " in errors
    assert run.status == "finished"
    assert run.finished_rounds() == [1]
    assert run.state["starts"] == 2
    assert run.owner.own["launch"]["app"] == str(app)
    assert run.owner.own["launch"]["working-directory"] == str(tmp_path)
    assert set(run.document) == {"format", "strategy", "config", "versions", "created", "app"}
    files = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
    assert not any(str(app).encode() in content for content in files)
    metrics = run.metrics()
    assert [line["answers"] for line in metrics] == [1, 1]
    # Neutral: neither the user's folder nor the app's decides what a relative path means.
    assert metrics[0]["folder"] == str(tmp_path / "run.owner")
    left = ["flower.log", "lock", "own.json", "times.jsonl"]
    assert sorted(entry.name for entry in run.owner.path.iterdir()) == left
    assert times_in(path) == {"config.json": {run.document["created"]}}
    assert len({entry.stat().st_mtime for entry in [path, *path.rglob("*")]}) == 1


def test_ctrl_c_asks_a_run_to_end_and_twice_ends_it_at_once(tmp_path: Path) -> None:
    """So does once where no run has begun: nothing was spent."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    run = RunDirectory(tmp_path / "run")
    try:
        with pytest.raises(KeyboardInterrupt), launch._asked_to_stop(run, print):
            signal.raise_signal(signal.SIGINT)
        run = RunDirectory.create(run.path, config={})
        with launch._asked_to_stop(run, print) as stopping:
            signal.raise_signal(signal.SIGINT)
            assert stopping.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_crash_of_flowers_simulation_ends_the_run(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the ServerApp, in a thread of Flower's, still waits for its nodes."""
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    outcome = launch.run_app(app, tmp_path / "run", resolve_config(app), ray=True)
    assert outcome.unexpected
    assert "ValueError: Invalid address" in RunDirectory(outcome.path).owner.log_file.read_text()
