"""Run a Flower app on this machine, follow it, and know whether it succeeded.

`flwr run` submits: it returns before the run is over and reports success for runs that fail. This
module runs the app in processes of this machine, follows it to its end and judges how it ended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flower_privsyn
from flower_privsyn import files
from flower_privsyn.checks import check_whole
from flower_privsyn.environment import RESUME, RUN_DIRECTORY, WORKING_DIRECTORY
from flower_privsyn.errors import ConfigError, MissingExtraError, RunDirectoryError
from flower_privsyn.host.app import App, ConfigValue, load_app, read_settings, resolve_config
from flower_privsyn.models.threads import most_threads
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import (
    OwnerFolder,
    default_run_directory,
    new_run_path,
    supervisor_lock,
)
from flower_privsyn.run.run_format import disk_full_sentence
from flower_privsyn.run_config import folded, unfolded

Say = Callable[[str], object]
"""Told what is being done, a line at a time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        path: The run directory.
        error: None when the run finished, else the sentence that says why it did not.
        unexpected: Whether the error is a fault of the program rather than of what was asked, and
            not all is said without the log.
    """

    path: Path
    error: str | None
    unexpected: bool = False


def run_app(
    app: App,
    run_path: Path,
    values: Mapping[str, ConfigValue],
    *,
    ray: bool = False,
    say: Say = lambda _line: None,
) -> Outcome:
    """Run an app in a new run directory and wait for its end.

    Args:
        app: The app.
        run_path: The run directory; must not hold a run.
        values: Settings from `resolve_config`; `run-dir` is set here.
        ray: Have Flower's own simulation, on Ray, run both apps, as `flwr run` does.
        say: Told how far it is.

    Returns:
        How the run ended.

    Raises:
        RunDirectoryError: The folder holds a run, or another process is starting one there.
        MissingExtraError: Ray is asked for and not installed.
    """
    run_path = files.expanded(run_path).absolute()
    RunDirectory(run_path).refuse_existing()
    launch = _asked(app, values) | ({"ray": True} if ray else {})
    return _launch(app, run_path, launch, resume=False, say=say)


def _asked(app: App, values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """What the owner's folder keeps of what is started."""
    return {
        "app": str(app.path),
        "name": app.name,
        "run-config": dict(values),
        "working-directory": str(Path.cwd()),
    }


def place_of(app: App, values: Mapping[str, ConfigValue], run_dir: str | None) -> Path:
    """Where a new run is written: as the command line says, else the settings, else a new folder.

    Args:
        app: the app.
        values: settings of the run.
        run_dir: of the command line.

    Raises:
        ConfigError: the settings ask to continue a run, which a new one would charge the same
            people for again.
        RunDirectoryError: the folder holds a run.
    """
    named = run_dir or str(values.get("run-dir", ""))
    if values.get("resume") not in (None, False, "auto"):
        raise ConfigError(
            "resume = true continues nothing here: `privsyn run` starts a run, which would charge "
            "the same people again. To continue one: privsyn resume "
            f"{files.quoted(Path(named or 'DIR'))}"
        )
    if named:
        path = files.user_path(named).absolute()
    elif Path.cwd().resolve().is_relative_to(app.path.resolve()):
        # Flower would pack it into the app.
        path = default_run_directory(app.path.name)
    else:
        path = new_run_path(Path("runs"), app.path.name)
    RunDirectory(path).refuse_existing()
    return path


def resume_run(
    run_path: Path,
    *,
    app: App | None = None,
    values: Mapping[str, ConfigValue] | None = None,
    settings: Sequence[str] = (),
    say: Say = lambda _line: None,
) -> Outcome:
    """Continue a run that was interrupted or failed, with the settings it was started with.

    Those are this user's own, from the owner's folder. Where it does not have them, nothing that
    the run directory says is taken for them: it may be somebody else's.

    Args:
        run_path: The run directory.
        app: The app, where the owner's folder does not name it or it has moved.
        values: The settings, where the owner's folder does not have them; by default the app's own.
            A strategy of this library refuses those that are not the run's.
        settings: `key=value` texts to go on with otherwise. A strategy of this library takes what
            no release depends on, refuses all else, and records what was changed.
        say: Told how far it is.

    Returns:
        How the run ended this time.

    Raises:
        RunDirectoryError: There is no such run, it has finished, nothing says which app it is of,
            or a process is still working on it.
        ConfigError: The app has moved, or a setting is malformed or unknown.
    """
    run_path = files.expanded(run_path).absolute()
    begun = (run_path / "config.json").is_file()
    owner = OwnerFolder(run_path)
    launch: dict[str, Any] = owner.own.get("launch", {})
    if begun or not (launch or app):
        run = RunDirectory.open(run_path)  # says what is missing
        run.refuse_finished()
    if not (launch or app):
        raise RunDirectoryError(
            f"{owner.path} holds nothing that you started by `privsyn run` with this home folder, "
            f"and what {run_path} says is not run: it may be somebody else's. Name the app and, "
            f"by --set, what the run was given: privsyn resume {files.quoted(run_path)} --app APP"
        )
    app = app or load_app(launch["app"])
    launch = launch or _asked(app, resolve_config(app) if values is None else values)
    values = dict(launch["run-config"])
    new = unfolded(read_settings(app, settings))
    if place := sorted({"run-dir", "resume"} & set(new)):
        raise ConfigError(
            f"{place[0]} cannot be set here: `privsyn resume` continues the run in {run_path}."
        )
    values |= new
    launch = {**launch, "app": str(app.path), "run-config": values}
    return _launch(app, run_path, launch, resume=begun, say=say)


def _launch(
    app: App,
    run_path: Path,
    launch: Mapping[str, Any],
    *,
    resume: bool,
    say: Say,
) -> Outcome:
    check_whole("num-nodes", launch["run-config"].get("num-nodes", 2), ge=1)
    if launch.get("ray") and importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            "--ray needs ray; install it with pip install 'flower-privsyn[quickstart]'."
        )
    owner = OwnerFolder(run_path)
    try:
        run_path.mkdir(parents=True, exist_ok=True)
        owner.make()
        with supervisor_lock(run_path):
            try:
                run = RunDirectory(run_path)
                if not resume:  # another process may have begun one while the lock was waited for
                    run.refuse_existing()
                before, kept = dict(run.state), launch
                if resume:  # settings that are changed stand there once the run goes on with them
                    kept = {**(owner.own.get("launch") or launch), "app": launch["app"]}
                owner.remember(launch=kept)
                owner.log_file.touch(mode=0o600)  # what an app prints is its owner's business
                say("start the app and load its models ...")
                ended = _to_its_end(app, run, launch, say, resume=resume)
                outcome = _judge(app, run_path, ended, before)
                begun = run.config_file.exists()
                if outcome.error is not None and not outcome.unexpected and not begun:
                    shutil.rmtree(owner.path, ignore_errors=True)
                return outcome
            finally:
                _forget_start(run_path)
    except OSError as error:
        if files.is_disk_full(error):
            raise RunDirectoryError(f"{disk_full_sentence(run_path)}.") from error
        place = error.filename or run_path
        raise RunDirectoryError(f"{place} cannot be used: {error.strerror or error}.") from error


def _to_its_end(
    app: App,
    run: RunDirectory,
    launch: Mapping[str, Any],
    say: Say,
    *,
    resume: bool,
) -> dict[str, Any]:
    """Run the app in a process group of its own, which ends with this call.

    Returns:
        What `flower_privsyn.host.serve` says of its end, and `status`, that of its process.
    """
    values = dict(launch["run-config"])
    if app.takes("run-dir"):
        values["run-dir"] = str(run.path)
    if app.takes("resume"):
        values["resume"] = resume
    nodes = values.get("num-nodes", 2)
    asked = {
        "app": str(app.path),
        "server": app.server,
        "client": app.client,
        "run-config": folded(values, app.defaults),
        "nodes": nodes,
        # One process per core answers for the nodes, and never more processes than nodes: each of
        # them loads the embedding model.
        "processes": min(most_threads(), nodes),
        "ray": bool(launch.get("ray")),
    }
    with run.owner.log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flower_privsyn.host.serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=run.owner.path,
            env=_environment(run.path, launch, resume=resume),
            # Ctrl-C in the terminal is for this process alone; it ends the others in order.
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    ended: dict[str, Any] = {}
    try:
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        with _asked_to_stop(run, say) as stopping:
            for line in process.stdout:
                said = json.loads(line)
                if isinstance(said, str):
                    say(said)
                else:
                    ended = said
                if stopping.is_set():  # the run forgets what was asked of an earlier start
                    run.owner.ask_to_stop()
            process.wait()
    except (BrokenPipeError, ValueError):
        process.wait()  # it ended before it had read what to run, or in the middle of a line
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    return {**ended, "status": process.returncode}


@contextlib.contextmanager
def _asked_to_stop(run: RunDirectory, say: Say) -> Iterator[threading.Event]:
    """Set once Ctrl-C asks a run that has begun to end after its open round; twice ends it at once.

    So does once, where no run has begun: nothing was spent.
    """
    stopping = threading.Event()

    def asked(number: int, frame: Any) -> None:
        if stopping.is_set() or not run.config_file.is_file():
            signal.default_int_handler(number, frame)
        stopping.set()
        run.owner.ask_to_stop()
        say(
            "The run ends after its open round, so that none is charged for nothing; with no round "
            "left it goes on to its end. Ctrl-C again ends it at once."
        )

    before = signal.signal(signal.SIGINT, asked)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)


def _environment(run_path: Path, launch: Mapping[str, Any], *, resume: bool) -> dict[str, str]:
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray is polite by default; here the nodes are the work somebody is waiting for.
        "RAY_worker_niceness": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        WORKING_DIRECTORY: str(launch.get("working-directory", Path.cwd())),
        RUN_DIRECTORY: str(run_path),
        RESUME: "1" if resume else "0",
    }
    # Where this package lies; it need not be installed.
    places = [str(Path(flower_privsyn.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return environment


def _forget_start(run_path: Path) -> None:
    """Leave no run directory where no run has begun; the log stays with its owner."""
    if (run_path / "config.json").exists():
        return
    for file in (run_path / ".lock", OwnerFolder(run_path).own_file):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # an app may have written something of its own
        run_path.rmdir()


def _judge(
    app: App, run_path: Path, ended: Mapping[str, Any], before: Mapping[str, Any]
) -> Outcome:
    """Decide how a run ended, by its own files and by what became of the app.

    Args:
        app: that was run.
        run_path: where.
        ended: what `_to_its_end` returns.
        before: the run's state before this start, which stays where the app refuses to go on.
    """
    run = RunDirectory.open(run_path) if (run_path / "config.json").is_file() else None
    if run is not None and run.status == "failed" and run.state != before:
        return Outcome(path=run_path, error=run.error, unexpected=bool(run.state.get("unexpected")))
    finished = run is not None and run.status == "finished"
    sentence, unexpected = ended.get("sentence"), bool(ended.get("unexpected"))
    if sentence == "" and (finished or not (run or app.takes("run-dir"))):
        return Outcome(path=run_path, error=None)
    if not sentence:
        unexpected = True
        sentence = "The ServerApp ended early, without an exception and without a result."
        if ended["status"] < 0:
            sentence = "The ServerApp was killed."
    if finished:
        unexpected = True
        sentence = f"The run has finished, and its app has not: {sentence}"
    return Outcome(path=run_path, error=sentence, unexpected=unexpected)
