"""Run a Flower app on this machine, follow it, and know whether it succeeded.

`flwr run` submits: it returns before the run is over and reports success for runs that fail. This
module starts Flower for one run, submits the app with Flower's own command, follows it to its end
and judges how it ended.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.errors import (
    ConfigError,
    FederationError,
    MissingExtraError,
    PrivsynError,
    RunDirectoryError,
)
from flower_privsyn.files import (
    expanded,
    full_disk,
    is_disk_full,
    quoted,
    refuse_other_than_utf8,
    says_disk_full,
    user_path,
)
from flower_privsyn.host.app import (
    App,
    ConfigValue,
    check_setting,
    check_settings,
    federation_of,
    load_app,
    ray_address,
    read_settings,
)
from flower_privsyn.host.flower import Flower, FlowerStatus, one_line
from flower_privsyn.host.progress import read_progress
from flower_privsyn.runs import (
    RunDirectory,
    default_run_directory,
    how_to_resume,
    lock_file,
    new_run_path,
    supervisor_lock,
)
from flower_privsyn.runs.owner import OwnerFolder
from flower_privsyn.runs.run_format import was_launched
from flower_privsyn.runs.surroundings import disk_full_sentence

Follower = Callable[[Sequence[Mapping[str, Any]]], None]
"""Shown the stages of the run, oldest first, several times a second."""

_RESUME_WAIT_SECONDS = 10.0
_CLUSTER_SECONDS = 10.0
_NO_CONTEXT = "Queue timeout. No context received."
#: What Flower's ServerApp is told that asks for its work when the time to start is over.
_LATE = "[/v1/runtime/pull-task-input][ApiError:1008] Runtime task-token authentication failed."
#: What Flower's SuperLink says of a ServerApp that it has given up.
_UNHEARD = "No heartbeat received from the task"
#: What Ray says, in the log alone, where its processes are not ready in the time that it waits.
_RAY_LATE = "The current node timed out during startup"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        path: The run directory.
        error: None when the run finished, else the sentence that says why it did not.
        unexpected: Whether the error is a fault of the program rather than of what was asked.
    """

    path: Path
    error: str | None
    unexpected: bool = False

    @property
    def says_all(self) -> bool:
        """Whether the sentence is enough, without the log."""
        return self.error is not None and not self.unexpected


def run_app(
    app: App,
    run_path: Path,
    values: Mapping[str, ConfigValue],
    *,
    follow: Follower | None = None,
) -> Outcome:
    """Run an app in a new run directory and wait for its end.

    Args:
        app: The app.
        run_path: The run directory; must not hold a run.
        values: Settings from `resolve_config`; `run-dir` is set here.
        follow: Called with the stages several times a second.

    Returns:
        How the run ended.

    Raises:
        RunDirectoryError: The folder holds a run, or another process is starting one there.
        FederationError: Flower did not start or refused the app.
        MissingExtraError: Flower's simulation is not installed.
    """
    run_path = expanded(run_path).absolute()
    RunDirectory(run_path).refuse_existing()
    return _launch(app, run_path, _asked(app, values), resume=False, follow=follow)


def _asked(app: App, values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """What the owner's folder keeps of what is started."""
    return {
        "app": str(app.path),
        "name": app.name,
        "run-config": dict(values),
        "working-directory": str(Path.cwd()),
    }


def place_of(app: App, values: Mapping[str, ConfigValue], run_dir: str | None) -> Path:
    """Where a new run is written: as the command line says, or the settings, or neither.

    Args:
        app: the app.
        values: settings of the run.
        run_dir: of the command line.

    Raises:
        ConfigError: they name two folders, or one inside the app; the settings ask to continue a
            run, which a new one would charge the same people for again; or a name is no UTF-8.
        RunDirectoryError: no run can begin there.
    """
    set_to = str(values.get("run-dir", ""))
    named = Path(run_dir or set_to or "DIR")
    path = user_path(named).absolute()
    if run_dir and set_to and path.resolve() != user_path(set_to).resolve():
        raise ConfigError(
            f'--run-dir {run_dir} and the setting run-dir = "{set_to}" name two folders; give one.'
        )
    if values.get("resume") not in (None, False, "auto"):
        raise ConfigError(
            "resume = true continues nothing here: `privsyn run` starts a run, which would charge "
            f"the same people again. To continue one: privsyn resume {quoted(named)}"
        )
    if run_dir or set_to:
        if path.resolve().is_relative_to(app.path.resolve()):
            raise ConfigError(
                f"The run directory {path} lies inside the app, and Flower would pack it into the "
                "app; choose another --run-dir."
            )
    elif Path.cwd().resolve().is_relative_to(app.path.resolve()):
        path = default_run_directory(app.name)
    else:
        path = new_run_path(Path("runs"), app.name)
    refuse_odd_places(path)
    RunDirectory(path).refuse_existing()
    return path


def refuse_odd_places(run_path: Path) -> None:
    """Refuse folders that Flower and the files of a run cannot be told of.

    Args:
        run_path: the run directory, absolute.

    Raises:
        ConfigError: the name of one of them is no UTF-8.
    """
    refuse_other_than_utf8("The run directory", run_path)
    refuse_other_than_utf8("The folder that the command was typed in", Path.cwd())


def resume_run(
    run_path: Path,
    *,
    app: App | None = None,
    values: Mapping[str, ConfigValue] | None = None,
    settings: Sequence[str] = (),
    follow: Follower | None = None,
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
        follow: Called with the stages several times a second.

    Returns:
        How the run ended this time.

    Raises:
        RunDirectoryError: There is no such run, it has finished, nothing says which app it is of,
            or a process is still working on it.
        ConfigError: The app has moved, no longer takes the recorded settings, or a setting is
            malformed or out of range.
    """
    run_path = expanded(run_path).absolute()
    app, launch, begun = _resumption(run_path, settings, app, values)
    return _launch(app, run_path, launch, resume=begun, follow=follow)


def resumed_settings(
    run_path: Path, settings: Sequence[str], *, app: App | None = None
) -> tuple[App, Mapping[str, ConfigValue]]:
    """The app of a run and the settings that `resume_run` would go on with.

    Args:
        run_path: the run directory.
        settings: as for `resume_run`.
        app: the same.

    Raises:
        PrivsynError: as `resume_run`.
    """
    app, launch, _ = _resumption(expanded(run_path).absolute(), settings, app)
    return app, launch["run-config"]


def how_to_go_on(run: RunDirectory) -> str | None:
    """What to do about a run that has no result, in words; None for one that is at work or done.

    Args:
        run: its directory.
    """
    if run.standing not in {"interrupted", "failed"}:
        return None
    try:
        _resumption(run.path, ())
    except PrivsynError as error:
        return f"not by `privsyn resume`: {error}"
    command = f"privsyn resume {quoted(run.path)}"
    if run.standing == "interrupted" or not run.state.get("asked_wrongly"):
        return command
    if run.ledger_file.is_file():
        return f"mend what the error names, then {command}"
    return (
        "nothing was spent: mend the setting that the error names and start a new run; what it "
        "names on this machine, or by --set where no release depends on it, can be mended for "
        f"this run, too: {command}"
    )


def _resumption(
    run_path: Path,
    settings: Sequence[str],
    app: App | None = None,
    values: Mapping[str, ConfigValue] | None = None,
) -> tuple[App, dict[str, Any], bool]:
    """What a run is continued with: its app, its launch, and whether it had begun.

    Raises:
        PrivsynError: as `resume_run`.
    """
    begun = (run_path / "config.json").is_file()
    owner = OwnerFolder(run_path)
    launch: dict[str, Any] = owner.own.get("launch", {})
    if begun or not (launch or app):
        run = RunDirectory.open(run_path)  # says what is missing
        run.refuse_finished()
    if not (launch or app):
        if not was_launched(run.document):
            raise RunDirectoryError(
                f"The run in {run_path} was not started by `privsyn run`; resume it with "
                f"{how_to_resume(run_path)}."
            )
        raise RunDirectoryError(
            f"{owner.path} holds nothing that you started, and what {run_path} says is not run: it "
            f"may be somebody else's. Name the app: privsyn resume {quoted(run_path)} --app APP"
        )
    app = app or load_app(launch["app"])
    launch = launch or _asked(app, app.defaults if values is None else values)
    values = dict(launch["run-config"])
    changed = f"{app.path} has changed since the run began: "
    for key, value in values.items():
        check_setting(app, key, value, source=changed)
    if settings:
        new = read_settings(app, settings)
        if place := sorted({"run-dir", "resume"} & set(new)):
            raise ConfigError(
                f"{place[0]} cannot be set here: `privsyn resume` continues the run in {run_path}."
            )
        values |= new
        check_settings(app, values)
    if begun and app.uses_run_directory and "resume" not in values:
        raise RunDirectoryError(
            f"{app.name} cannot resume: its [tool.flwr.app.config] declares no `resume`."
        )
    return app, {**launch, "app": str(app.path), "run-config": values}, begun


def require_cluster(address: str, *, seconds: float = _CLUSTER_SECONDS) -> None:
    """Refuse an address at which no Ray cluster answers.

    Args:
        address: host:port of its head.
        seconds: longest wait for an answer, > 0.

    Raises:
        FederationError: nobody answers.
    """
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        raise FederationError(
            f"No Ray cluster answers at ray-address = {address} ({error}); start its head with "
            "`ray start --head`."
        ) from error


def _launch(
    app: App,
    run_path: Path,
    launch: Mapping[str, Any],
    *,
    resume: bool,
    follow: Follower | None,
) -> Outcome:
    require_simulation()
    refuse_odd_places(run_path)
    federation_of(launch["run-config"])
    if address := ray_address(launch["run-config"]):
        require_cluster(address)
    owner = OwnerFolder(run_path)
    try:
        run_path.mkdir(parents=True, exist_ok=True)
        owner.make()
    except OSError as error:
        raise RunDirectoryError(
            f"The run directory {run_path}, or the folder {owner.path} for its log beside it, "
            f"cannot be written: {error.strerror or error}."
        ) from error
    wait = _RESUME_WAIT_SECONDS if resume else 0.0
    with supervisor_lock(run_path, wait_seconds=wait):
        try:
            outcome = _follow(app, run_path, launch, follow, resume=resume)
            if outcome.says_all and not (run_path / "config.json").exists():
                shutil.rmtree(owner.path, ignore_errors=True)
            return outcome
        except OSError as error:
            if is_disk_full(error):
                where = full_disk([run_path, owner.path])
                raise RunDirectoryError(f"{disk_full_sentence(where)}.") from error
            if isinstance(error, PermissionError) or error.errno == errno.EROFS:
                place = error.filename or run_path
                raise RunDirectoryError(f"{place} cannot be written: {error.strerror}.") from error
            raise
        finally:
            _forget_start(run_path)


def _follow(
    app: App,
    run_path: Path,
    launch: Mapping[str, Any],
    follow: Follower | None,
    *,
    resume: bool,
) -> Outcome:
    """Start Flower, hand the app in, follow it to its end and judge that."""
    # Processes of a killed run end within a second or so; until then they hold the run.
    with lock_file(
        run_path / ".lock", what=f"the run in {run_path}", wait_seconds=_RESUME_WAIT_SECONDS
    ):
        run = RunDirectory(run_path)
        kept = launch
        if resume:
            run.clear_failure()
            # Settings that are changed stand there once the run goes on with them.
            kept = {**(run.owner.own.get("launch") or launch), "app": launch["app"]}
        else:
            run.refuse_existing()
        run.owner.remember(launch=kept)
        run.progress_file.unlink(missing_ok=True)
    values = dict(launch["run-config"])
    if "run-dir" in values:
        values["run-dir"] = str(run_path)
    if "resume" in values:
        values["resume"] = resume

    # What the ServerApp says itself begins once it has its libraries and its models.
    starting: dict[str, Any] = {"name": "start Flower", "finished": False}
    loading: dict[str, Any] = {"name": "start the app and load its models", "finished": False}

    def show() -> None:
        if follow is None:
            return
        stages = read_progress(run_path / "progress.json")
        loading["finished"] = loading["finished"] or bool(stages)
        follow([starting, *([loading] if starting["finished"] else []), *stages])

    show()
    with _flower(run_path, launch, resume=resume) as flower:
        flower.submit(app, values, federation_of(values))
        starting["finished"] = True
        status = flower.wait(show)
        # Before Flower's own files are deleted, which makes room.
        log, full = flower.read_log(), flower.full_disk()
    # Nothing was said where it ended before it had anything to report.
    loading |= {"failed": not loading["finished"], "finished": True}
    show()
    return _judge(app, run_path, status, log, full=full)


def _forget_start(run_path: Path) -> None:
    """Leave no run directory where no run has begun; the log of Flower stays with its owner."""
    if (run_path / "config.json").exists():
        return
    for file in (run_path / ".lock", run_path / "progress.json", OwnerFolder(run_path).own_file):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # an app may have written something of its own
        run_path.rmdir()


def require_simulation() -> None:
    """Refuse a machine on which Flower cannot simulate.

    Raises:
        FederationError: it is no Linux and no macOS.
        MissingExtraError: ray is not installed.
    """
    if os.name != "posix":
        raise FederationError("`privsyn run` needs Linux or macOS.")
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            "Simulation needs ray; install it with pip install 'flower-privsyn[quickstart]'."
        )


@contextlib.contextmanager
def _flower(run_path: Path, launch: Mapping[str, Any], *, resume: bool) -> Iterator[Flower]:
    flower = Flower(run_path, launch, resume=resume)
    try:
        flower.start()
        yield flower
    except BaseException as error:
        full = flower.full_disk() if isinstance(error, FederationError) else None
        # The processes are ended first: a ServerApp that is still alive records its own end.
        flower.close()
        _record_failure(run_path, error)
        if full is not None:
            raise FederationError(f"{disk_full_sentence(full)} ({error})") from error
        raise
    else:
        flower.close()


def _record_failure(run_path: Path, error: str | BaseException) -> None:
    """Record why a run ended that has not done so itself, where there is room to write it."""
    if (run_path / "config.json").is_file():
        run = RunDirectory.open(run_path)
        if run.status == "running":
            with contextlib.suppress(OSError):
                run.mark_failed(error)


def _judge(
    app: App, run_path: Path, status: FlowerStatus, log: str, *, full: Path | None = None
) -> Outcome:
    """Decide how a run ended, by its own files and by what became of the app.

    Args:
        app: that was run.
        run_path: where.
        status: Flower's.
        log: what Flower and the app printed.
        full: a folder that takes no more bytes; None where all do.
    """
    run = RunDirectory.open(run_path) if (run_path / "config.json").is_file() else None
    if run is not None and run.status == "failed":
        return Outcome(path=run_path, error=run.error, unexpected=bool(run.state.get("unexpected")))
    finished = run is not None and run.status == "finished"
    completed = status.word == "finished:completed" and _NO_CONTEXT not in log
    if completed and (finished or not (run or app.uses_run_directory)):
        return Outcome(path=run_path, error=None)
    details = status.details.removeprefix("Simulation failed with exception: ")
    if finished:
        told = {"finished:completed": "called sys.exit", "finished:failed": f"failed: {details}"}
        then = told.get(status.word, "was killed" if status.died else "ended early")
        sentence = f"The run has finished, and after it the app {then}"
        return Outcome(path=run_path, error=sentence, unexpected=True)
    unexpected = True
    then = "run it again" if run is None else f"go on with {how_to_resume(run_path)}"
    ours = re.findall(r"^flower_privsyn\.errors\.\w+: (.+)$", log, re.MULTILINE)
    if full is not None or says_disk_full(log):
        sentence, unexpected = f"{disk_full_sentence(full)}.", False
    elif status.died and run is None and _LATE in log:
        sentence = (
            "Flower gave up the ServerApp before it had started: on this machine, busy as it is, "
            "that took longer than Flower waits. Nothing was spent: run it again."
        )
        unexpected = False
    elif _UNHEARD in status.details:
        sentence = (
            "Flower heard nothing of the ServerApp for a minute and ended the run: the machine "
            f"slept, or was too busy with other work; {then}."
        )
        unexpected = False
    elif _RAY_LATE in log:
        sentence = (
            "Ray, which simulates the nodes, did not start in the time that it waits: the machine "
            f"is busy with other work, or short of memory; {then}."
        )
        unexpected = False
    elif status.died:
        sentence = "The ServerApp was killed before the run was finished."
    elif status.word != "finished:failed":
        sentence = "The ServerApp ended early, without an exception and without a result."
    elif ours:
        sentence, unexpected = one_line(ours[-1]), False
    else:
        sentence = f"The ServerApp failed: {details or status.word}"
    _record_failure(run_path, sentence)
    return Outcome(path=run_path, error=sentence, unexpected=unexpected)
