"""Apps really run under Flower's simulation, and whatever is killed, nothing is left behind."""

from __future__ import annotations

import errno
import importlib.util
import inspect
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.supercore.corestate import sql_corestate

from flower_privsyn.cli import main
from flower_privsyn.environment import SUPERVISOR_PID
from flower_privsyn.errors import (
    ConfigError,
    FederationError,
    ModelError,
    RunDirectoryError,
)
from flower_privsyn.host import flower, launch, superlink
from flower_privsyn.host.app import App, load_app, resolve_config
from flower_privsyn.host.flower import Flower, FlowerStatus
from flower_privsyn.host.launch import Outcome
from flower_privsyn.host.processes import descendants, is_alive, name_of, started_at
from flower_privsyn.host.progress import read_progress
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.history import remember
from tests.support.data_cases import locked
from tests.support.flower_app import write_app
from tests.support.launched import launched
from tests.support.run_files import times_in
from tests.support.sockets import addresses


def test_a_folder_that_holds_a_run_is_refused_before_anything_starts(
    app: App, tmp_path: Path
) -> None:
    RunDirectory.create(tmp_path / "run", config={}).unlock()
    with pytest.raises(RunDirectoryError, match="already holds a run; choose another"):
        launch.run_app(app, tmp_path / "run", resolve_config(app))
    assert not (tmp_path / "run.owner" / "flower.log").exists()


def test_a_run_is_not_started_by_settings_that_ask_to_continue_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, run = write_app(tmp_path / "app"), tmp_path / "run"
    RunDirectory.create(run, config={}).unlock()
    assert main(["run", str(folder), "--run-dir", str(run), "--set", "resume=true"]) == 2
    assert f"privsyn resume {run}" in capsys.readouterr().err
    assert not (run / "flower.log").exists()


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
    run.mark_failed("The nodes are gone.")
    run.unlock()
    return run


def test_how_a_run_without_a_result_goes_on(stopped: RunDirectory, app: App) -> None:
    command = f"privsyn resume {stopped.path}"
    assert launch.how_to_go_on(stopped) == command
    stopped.mark_failed(KeyboardInterrupt())
    assert launch.how_to_go_on(stopped) == command
    # A mistyped model would be mistyped again.
    stopped.mark_failed(ModelError("model 'privsyn-ml' does not exist"))
    said = launch.how_to_go_on(stopped)
    assert said is not None
    assert said.startswith("nothing was spent: mend the setting that the error names and start a")
    stopped.ledger_file.touch()
    assert launch.how_to_go_on(stopped) == f"mend what the error names, then {command}"
    # What `privsyn resume` would refuse, it is not advised for.
    launched(stopped, Path("/gone"))
    said = "not by `privsyn resume`: There is no app folder /gone."
    assert launch.how_to_go_on(stopped) == said
    stopped.owner.own_file.unlink()
    said = launch.how_to_go_on(stopped)
    assert said is not None
    assert said.endswith(f"privsyn resume {stopped.path} --app APP")
    stopped.config_file.write_text(json.dumps({**stopped.document, "app": None}))
    said = launch.how_to_go_on(stopped)
    assert said is not None
    assert "was not started by `privsyn run`; resume it with the command that began" in said
    stopped.mark_finished()
    assert launch.how_to_go_on(stopped) is None


def test_a_run_that_may_only_be_read_is_not_gone_on_with(stopped: RunDirectory) -> None:
    said = f"The run in {stopped.path} cannot be written: Permission denied"
    with locked(stopped.path, mode=0o555), pytest.raises(RunDirectoryError, match=said):
        launch.resume_run(stopped.path)
    assert stopped.status == "failed"


def _judge(
    app: App,
    path: Path,
    word: str,
    *,
    details: str = "",
    died: bool = False,
    log: str = "",
    full: Path | None = None,
) -> Outcome:
    status = FlowerStatus(word=word, details=details, died=died)
    return launch._judge(app, path, status, log, full=full)


@pytest.mark.parametrize("known_by", ["the disk", "the log"])
def test_a_full_disk_is_the_cause_whatever_flower_says(
    stopped: RunDirectory, app: App, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    stopped.clear_failure()

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if known_by == "the disk":
        monkeypatch.setattr(RunDirectory, "mark_failed", no_room)
        outcome = _judge(app, stopped.path, "unknown", died=True, full=stopped.path)
        where = f"The disk of {stopped.path}"
    else:
        log = "sqlite3.OperationalError: database or disk is full\n"
        outcome = _judge(app, stopped.path, "finished:failed", log=log)
        where = "A disk"
    assert outcome.error == (
        f"{where} is full: make room, and go on, with a run by `privsyn resume`, with all else by "
        "the same command."
    )
    assert outcome.says_all


def test_nothing_is_left_of_a_start_without_room(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(superlink, "write_keys", no_room)
    monkeypatch.setattr(flower, "_short_folder", lambda: str(tmp_path))
    with pytest.raises(RunDirectoryError, match="disk is full: make room"):
        launch.run_app(app, tmp_path / "run", resolve_config(app))
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob("privsyn-*"))


def test_a_superlink_that_finds_no_room_says_so(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_start(self: Flower) -> None:
        raise FederationError(f"Flower's SuperLink did not start; see {self.log}.")

    monkeypatch.setattr(Flower, "start", no_start)
    monkeypatch.setattr(Flower, "full_disk", lambda self: self.home)
    with pytest.raises(FederationError, match=r"The disk of .* is full: .*SuperLink did not start"):
        launch.run_app(app, tmp_path / "run", resolve_config(app))
    assert not (tmp_path / "run").exists()


def test_a_run_and_its_app_must_both_end_well(app: App, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    run.mark_failed("The users file is missing.")
    assert _judge(app, run.path, "finished:completed").error == "The users file is missing."
    run.mark_finished()
    assert _judge(app, run.path, "finished:completed").error is None
    for ended in (
        _judge(app, run.path, "finished:failed", details="no such bucket"),
        _judge(app, run.path, "finished:completed", log=f"DEBUG: {launch._NO_CONTEXT}\n"),
        _judge(app, run.path, "running", died=True),
    ):
        assert ended.error is not None
        assert ended.unexpected
        assert run.status == "finished"


def test_a_server_app_that_flower_did_not_wait_for_is_told_from_one_that_was_killed(
    app: App, tmp_path: Path
) -> None:
    log = f"\x1b[91mERROR \x1b[0m:     {launch._LATE}\n"
    outcome = _judge(app, tmp_path / "run", "finished:failed", died=True, log=log)
    assert outcome.error is not None
    assert "longer than Flower waits. Nothing was spent" in outcome.error
    RunDirectory.create(tmp_path / "run", config={})
    outcome = _judge(app, tmp_path / "run", "finished:failed", died=True, log=log)
    assert outcome.error == "The ServerApp was killed before the run was finished."


@pytest.mark.parametrize("died", [False, True])
def test_a_machine_that_slept_is_told_from_a_server_app_that_failed(
    app: App, tmp_path: Path, died: bool
) -> None:
    assert launch._UNHEARD in inspect.getsource(sql_corestate)
    run = RunDirectory.create(tmp_path / "run", config={})
    launched(run)
    outcome = _judge(app, run.path, "finished:failed", details=launch._UNHEARD, died=died)
    assert outcome.error is not None
    assert "the machine slept, or was too busy" in outcome.error
    assert outcome.error.endswith(f"go on with `privsyn resume {run.path}`.")
    assert (run.error, outcome.unexpected) == (outcome.error, False)
    begun = _judge(app, tmp_path / "none", "finished:failed", details=launch._UNHEARD, died=died)
    assert begun.error is not None
    assert begun.error.endswith("too busy with other work; run it again.")


def test_a_run_that_recorded_no_end_has_failed(app: App, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", config={})
    outcome = _judge(app, run.path, "running", died=True)
    assert outcome.error == "The ServerApp was killed before the run was finished."
    assert run.error == outcome.error
    run.clear_failure()
    outcome = _judge(app, run.path, "finished:completed")
    assert outcome.error is not None
    assert outcome.error.startswith("The ServerApp ended early")


def test_a_ray_that_did_not_start_is_told_from_a_server_app_that_failed(
    app: App, tmp_path: Path
) -> None:
    node = importlib.util.find_spec("ray._private.node")
    assert node is not None
    assert node.origin is not None
    assert launch._RAY_LATE in Path(node.origin).read_text(encoding="utf-8")
    log = f"Exception: {launch._RAY_LATE}. This could happen because some of the raylet failed\n"
    ended = {"details": "An error was encountered. Ending simulation.", "log": log}
    begun = _judge(app, tmp_path / "none", "finished:failed", **ended)
    assert begun.error is not None
    assert begun.error.startswith("Ray, which simulates the nodes, did not start")
    assert begun.error.endswith("busy with other work, or short of memory; run it again.")
    run = RunDirectory.create(tmp_path / "run", config={})
    launched(run)
    outcome = _judge(app, run.path, "finished:failed", **ended)
    assert outcome.error is not None
    assert outcome.error.endswith(f"go on with `privsyn resume {run.path}`.")
    assert (run.error, outcome.unexpected) == (outcome.error, False)


def test_without_a_run_directory_flower_and_its_log_decide(tmp_path: Path) -> None:
    plain = load_app(write_app(tmp_path / "app", run_directory=False))
    assert not plain.uses_run_directory
    assert _judge(plain, tmp_path, "finished:completed").error is None
    # The trace of a ServerApp that called sys.exit.
    early = _judge(plain, tmp_path, "finished:completed", log=f"DEBUG: {launch._NO_CONTEXT}\n")
    assert early.error is not None
    failed = _judge(
        plain,
        tmp_path,
        "finished:failed",
        details="Simulation failed with exception: no such thing",
    )
    assert failed.error == "The ServerApp failed: no such thing"
    assert failed.unexpected
    log = "Traceback\nflower_privsyn.errors.ConfigError: epsilon is -1; it must be > 0.\nmore\n"
    ours = _judge(plain, tmp_path, "finished:failed", log=log)
    assert (ours.error, ours.unexpected) == ("epsilon is -1; it must be > 0.", False)


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


def _wait_for_stage(
    path: Path, name: str, process: subprocess.Popen[str], *, since: float = 0.0
) -> None:
    """Wait until a stage has begun after `since`, not one of an earlier start of the run."""
    deadline = time.monotonic() + 240
    while not any(
        stage["name"] == name and (path / "progress.json").stat().st_mtime > since
        for stage in read_progress(path / "progress.json")
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _started_by(path: Path) -> dict[int, str]:
    """The processes of the run in a directory: all below the guard its ServerApp names."""
    server = RunDirectory(path).running_process()
    environment = Path(f"/proc/{server}/environ").read_bytes().decode().split("\0")
    guard = int(dict(line.split("=", 1) for line in environment if "=" in line)[SUPERVISOR_PID])
    return {pid: started_at(pid) for pid in [guard, *(one.pid for one in descendants(guard))]}


def _belongs_to_its_owner(path: Path, pids: list[int]) -> None:
    """Nothing of a run listens beyond this machine, and Ray answers nobody without the token."""
    assert addresses(pids) == {"127.0.0.1"}
    names = {psutil.Process(pid).name(): psutil.Process(pid) for pid in pids}
    sockets = names["gcs_server"].net_connections(kind="inet")
    address = next(
        f"127.0.0.1:{each.laddr.port}" for each in sockets if each.status == psutil.CONN_LISTEN
    )
    token = path.with_name("run.owner") / "keys" / "ray"
    (path / "guess").write_text("0" * 64)
    wanted = [
        ("token", token, "answered"),
        ("token", path / "guess", "refused"),
        ("disabled", token, "refused"),
    ]
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", _ASK_RAY, address],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(file)},
        )
        for mode, file, _ in wanted
    ]  # fmt: skip
    for process, (mode, file, expected) in zip(asked, wanted, strict=True):
        answer, errors = process.communicate(timeout=60)
        assert answer.strip() == expected, (mode, file, answer, errors)
    (path / "guess").unlink()
    # Ray's own folders are open to everybody; the one they lie in is not.
    arguments = names["raylet"].cmdline()
    session = Path(next(each for each in arguments if each.startswith("--session_dir=")))
    session = Path(str(session).partition("=")[2])
    assert path.parent not in session.parents
    assert stat.S_IMODE(session.parents[1].stat().st_mode) == 0o700
    assert session.parents[1].name.startswith("privsyn-")


_ASK_RAY = """
import sys
from ray._raylet import GcsClient

try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)
    print("answered")
except Exception as error:
    print("refused" if "auth" in str(error).lower() else repr(error))
"""


def _wait_until_gone(started: dict[int, str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while left := [pid for pid, when in started.items() if is_alive(pid, when)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads environments in /proc")


@needs_proc
def test_kill_the_command_then_the_server_app_then_finish(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    path = tmp_path / "run"
    command = _privsyn("run", app, "--run-dir", path, "--set", "behaviour=hang", cwd=tmp_path)
    _wait_for_stage(path, "hang", command)
    started = _started_by(path)
    # SuperLink, SuperExec, simulation and Ray at the least.
    assert len(started) > 6
    _belongs_to_its_owner(path, list(started))

    command.kill()  # not waited for: a supervisor nobody has collected is dead all the same
    _wait_until_gone(started, seconds=20)
    command.communicate()
    run = RunDirectory.open(path)
    assert run.status == "running"
    assert run.running_process() is None
    run.lock()
    run.unlock()

    # Resumed, and now only the ServerApp is killed.
    since = time.time()
    command = _privsyn("resume", path, cwd=tmp_path)
    _wait_for_stage(path, "hang", command, since=since)
    started = _started_by(path)
    with pytest.raises(RunDirectoryError, match=f"is in use by process {command.pid}; wait"):
        launch.resume_run(path)
    server = run.running_process()
    assert server is not None
    os.kill(server, signal.SIGKILL)
    errors = command.communicate(timeout=60)[1]
    assert command.returncode == 1
    assert "privsyn: The ServerApp was killed before the run was finished." in errors
    assert f"The log is {tmp_path / 'run.owner' / 'flower.log'}" in errors
    _wait_until_gone(started, seconds=5)
    assert run.status == "failed"

    (path / "go-on").touch()
    resumed = _privsyn("resume", path, cwd=tmp_path)
    output, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert f"Run directory: {path}\n" in output
    assert f"Synthetic texts: {path / 'synthetic.jsonl'} (5)\n" in output
    assert "start Flower done in " in errors
    assert "ask the nodes done (1) in " in errors
    assert run.status == "finished"
    assert run.finished_rounds() == [1]
    assert run.state["starts"] == 3
    assert run.owner.own["launch"]["app"] == str(app)
    assert run.owner.own["launch"]["working-directory"] == str(tmp_path)
    assert set(run.document) == {"format", "strategy", "config", "versions", "created", "app"}
    files = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
    assert not any(str(app).encode() in content for content in files)
    metrics = run.metrics()
    assert [line["answers"] for line in metrics] == [1, 1, 1]
    # Neutral: neither the user's folder nor the app's decides which client code runs.
    assert metrics[0]["folder"] == str(tmp_path / "run.owner" / "empty")
    # Flower's own folder goes; the log stays.
    left = ["flower.log", "lock", "own.json", "times.jsonl"]
    assert sorted(entry.name for entry in run.owner.path.iterdir()) == left
    assert times_in(path) == {"config.json": {run.document["created"]}}
    assert len({entry.stat().st_mtime for entry in [path, *path.rglob("*")]}) == 1
    assert "Starting Flower Simulation" in (tmp_path / "run.owner" / "flower.log").read_text()


@needs_proc
def test_ctrl_c_takes_everything_with_it(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    path = tmp_path / "run"
    command = _privsyn("run", app, "--run-dir", path, cwd=tmp_path)
    deadline = time.monotonic() + 60
    started: dict[int, str] = {}
    while len(started) < 3:  # the guard, the SuperLink and its SuperExec
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
        started = {info.pid: name_of(info) for info in descendants(command.pid)}
    command.send_signal(signal.SIGINT)
    errors = command.communicate(timeout=60)[1]
    assert command.returncode == 130
    assert errors.endswith("privsyn: interrupted\n")
    assert not path.exists()
    assert not any(is_alive(pid) for pid in started)


def test_a_refusal_before_the_run_began_is_its_sentence(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    path = tmp_path / "run"
    command = _privsyn("run", app, "--run-dir", path, "--set", "behaviour=refuse", cwd=tmp_path)
    output, errors = command.communicate(timeout=240)
    assert command.returncode == 2
    assert errors.endswith("privsyn: The setting epsilon is -1.0; it must be > 0.\n")
    assert output == ""
    # No run was begun, and the sentence says all.
    assert not path.exists()
    assert not (tmp_path / "run.owner").exists()
