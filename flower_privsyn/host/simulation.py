"""Run a Flower app on this machine, follow it, and know whether it succeeded.

`flwr run` submits: it returns before the run is over and reports success for runs that fail. It
also leaves a SuperLink running, lets the SuperLink's folder decide which client code runs, and
reaches for the network. This module starts a SuperLink that belongs to one run, from an empty
folder and with the network features off, submits the app with Flower's own command, follows it
to its end, and leaves no process behind, whatever happens to the process that called it.

Only Flower's commands and the text they print are used here, none of its Python interfaces.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from flower_privsyn import clock
from flower_privsyn.environment import RESUME, RUN_DIRECTORY, RUN_MARK, WORKING_DIRECTORY
from flower_privsyn.errors import (
    ConfigError,
    FederationError,
    MissingExtraError,
    RunDirectoryError,
)
from flower_privsyn.files import write_json
from flower_privsyn.host import superlink
from flower_privsyn.host.processes import (
    ProcessInfo,
    descendants,
    is_alive,
    kill,
    marked_processes,
)
from flower_privsyn.host.progress import read_progress
from flower_privsyn.runs import (
    LAUNCH_FILE,
    RunDirectory,
    lock_file,
    supervisor_lock,
)
from flower_privsyn.runs.owner import OwnerFolder

ConfigValue = bool | int | float | str
"""What Flower allows as a setting."""

Follower = Callable[[Sequence[Mapping[str, Any]]], None]
"""Shown the stages of the run, oldest first, several times a second."""

_READY_CLIENTS = (
    "flower_privsyn.client_apps.default:app",
    "flower_privsyn.client_apps.training:app",
)
_LOOPBACK = "127.0.0.1"
_RAY_TOKEN = "ray"
_CONNECTION = "privsyn"
_POLL_SECONDS = 0.2
_START_SECONDS = 90.0
_LINGER_SECONDS = 20.0
_REFUSED_SECONDS = 0.5
_ASK_SECONDS = 10.0
_LIST_SECONDS = 2.0
_LOG_SECONDS = 3.0
_RESUME_WAIT_SECONDS = 10.0
_CLUSTER_SECONDS = 10.0
_NO_CONTEXT = "Queue timeout. No context received."


# -------------------------------------------------------------------- what to run


@dataclass(frozen=True, kw_only=True)
class App:
    """A Flower app in a folder.

    Attributes:
        path: The folder, absolute.
        name: `[project] name`.
        defaults: `[tool.flwr.app.config]`, nested tables flattened with dots.
        client: `[tool.flwr.app.components] clientapp`.
    """

    path: Path
    name: str
    defaults: Mapping[str, ConfigValue]
    client: str = ""

    @property
    def uses_run_directory(self) -> bool:
        """Whether the app takes a run directory and records there how it ended."""
        return "run-dir" in self.defaults


def load_app(path: str | Path) -> App:
    """Read a Flower app's `pyproject.toml`.

    Raises:
        ConfigError: There is no such folder, or it holds no Flower app.
    """
    folder = Path(path).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(f"There is no app folder {path}.")
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise ConfigError(f"{path} is not a Flower app: it holds no pyproject.toml.")
    document = _read_toml(file)
    project = document.get("project", {})
    app = document.get("tool", {}).get("flwr", {}).get("app", {})
    components = app.get("components", {}) if isinstance(app, dict) else {}
    if not isinstance(components, dict) or not {"serverapp", "clientapp"} <= set(components):
        raise ConfigError(
            f"{file} does not describe a Flower app: [tool.flwr.app.components] must name "
            "a serverapp and a clientapp."
        )
    if not isinstance(project.get("name"), str):
        raise ConfigError(f"{file} has no [project] name.")
    return App(
        path=folder,
        name=project["name"],
        defaults=_flatten(app.get("config", {}), file),
        client=str(components["clientapp"]),
    )


def check_settings(app: App, values: Mapping[str, ConfigValue]) -> None:
    """Check the settings of a strategy of this library before Flower is started.

    Args:
        app: The app; one that declares every key of a strategy is taken to configure it. Where
            its setting `strategy` names a strategy, that one alone is checked.
        values: Settings from `resolve_config`.

    Raises:
        ConfigError: A value is out of range or contradicts another one.
    """
    from flower_privsyn.strategies import CLIENT_KEYS, STRATEGIES, configuration_of

    if values.get("strategy") in STRATEGIES:
        configuration_of({key: values[key] for key in values if key != "run-dir"})
        return
    for config, _ in STRATEGIES.values():
        if config.keys() <= set(app.defaults):
            others = set(values) - config.keys() - CLIENT_KEYS
            config.from_run_config(values, other_keys=others)


def check_data(app: App, values: Mapping[str, ConfigValue]) -> None:
    """Read the users of a simulation before it starts, so that a bad file is named at once.

    Nodes answer with numbered codes, never with sentences. In a simulation the person who types
    the command holds the data, and may be told the file and the line.

    Args:
        app: The app; only one with a ready ClientApp of the library is checked, because only then
            the meaning of `data` is known.
        values: Settings from `resolve_config`.

    Raises:
        ConfigError: `data` is empty.
        DataError: The file or dataset cannot be read, or nobody has a document in it, or one with
            a date where `newer-than` is set.
    """
    if app.client not in _READY_CLIENTS:
        return
    if not values.get("data"):
        raise ConfigError(
            "data is empty: name a file of users, such as --set data=users.jsonl with one "
            '{"client_id": ..., "text": ...} per line.'
        )
    from flower_privsyn.data import load_configured

    load_configured(values).check_documents(dated=bool(values.get("newer-than", "")))


def resolve_config(
    app: App, *, config_name: str | None = None, settings: Sequence[str] = ()
) -> dict[str, ConfigValue]:
    """The settings of one run: the app's defaults, then a named file, then single settings.

    Args:
        app: The app.
        config_name: Name of a file in the app's `conf/` folder, without `.toml`.
        settings: `key=value` texts; a value is read as TOML and, failing that, as text.

    Returns:
        Every key the app declares, with its value.

    Raises:
        ConfigError: There is no such file, or a setting is malformed, not declared by the app
            or of another type than the app's own value.
    """
    values = dict(app.defaults)
    if config_name is not None:
        file = app.path / "conf" / f"{config_name}.toml"
        if not file.is_file():
            names = sorted(entry.stem for entry in (app.path / "conf").glob("*.toml"))
            known = f"it has {', '.join(names)}" if names else "it has none"
            raise ConfigError(f"{app.name} has no configuration {config_name!r}; {known}.")
        for key, value in _flatten(_read_toml(file), file).items():
            values[key] = _checked(app, key, value, source=f"{file}: ")
    return values | _read_settings(app, settings)


def _read_settings(app: App, settings: Sequence[str]) -> dict[str, ConfigValue]:
    """Single settings, as `--set` takes them."""
    values = {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError(f"--set takes key=value, got {setting!r}.")
        values[key] = _checked(app, key, _parse(app, key, text.strip()), source="")
    return values


def _parse(app: App, key: str, text: str) -> ConfigValue:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # `--set name=2024` means the text 2024 where the app declares a text.
    if isinstance(app.defaults.get(key), str) and not isinstance(value, str):
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _checked(app: App, key: str, value: ConfigValue, *, source: str) -> ConfigValue:
    if key not in app.defaults:
        near = difflib.get_close_matches(key, app.defaults, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(app.defaults)}."
        raise ConfigError(f"{source}{app.name} has no setting {key!r}; {hint}")
    default = app.defaults[key]
    if isinstance(default, bool) or isinstance(value, bool):
        fits = isinstance(default, bool) and isinstance(value, bool)
    elif isinstance(default, float):
        fits = isinstance(value, int | float)
        value = float(value) if fits else value
    else:
        fits = isinstance(value, type(default))
    if not fits:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise ConfigError(
            f"{source}The setting {key} is {value!r}; it must be {kinds[type(default)]}, "
            f"such as {json.dumps(default)}."
        )
    return value


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}.") from error


def _flatten(table: Any, file: Path, prefix: str = "") -> dict[str, ConfigValue]:
    if not isinstance(table, dict):
        raise ConfigError(f"{file}: the settings must be a table.")
    flat: dict[str, ConfigValue] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, file, f"{prefix}{key}."))
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{key}"] = value
        else:
            raise ConfigError(
                f"{file}: the setting {prefix}{key} must be a number, a text or true or false."
            )
    return flat


def _to_toml(values: Mapping[str, ConfigValue]) -> str:
    return "".join(f"{_toml_text(key)} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _toml_text(value) if isinstance(value, str) else repr(value)


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# -------------------------------------------------------------------- running it


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
        ConfigError: The settings ask to resume a run.
        RunDirectoryError: The folder holds a run, or another process is starting one there.
        FederationError: Flower did not start or refused the app.
        MissingExtraError: Flower's simulation is not installed.
    """
    run_path = run_path.expanduser().absolute()
    refuse_resume(values, run_path)
    RunDirectory(run_path).refuse_existing()
    launch = {
        "app": str(app.path),
        "name": app.name,
        "run-config": dict(values),
        "federation-config": _federation(app, values),
        "working-directory": str(Path.cwd()),
    }
    return _launch(app, run_path, launch, resume=False, follow=follow)


def refuse_resume(values: Mapping[str, ConfigValue], run_path: Path) -> None:
    """Refuse to start a run by settings that ask to continue one.

    Raises:
        ConfigError: `resume` is set: a new run would charge the same people again.
    """
    if values.get("resume"):
        raise ConfigError(
            "resume = true continues nothing here: `privsyn run` starts a run, which would charge "
            f"the same people again. To continue one: privsyn resume {run_path}"
        )


def resume_run(
    run_path: Path, *, settings: Sequence[str] = (), follow: Follower | None = None
) -> Outcome:
    """Continue a run that was interrupted or failed, with the settings it was started with.

    Args:
        run_path: The run directory.
        settings: `key=value` texts to go on with otherwise. A strategy of this library takes what
            no release depends on, refuses all else, and records what was changed.
        follow: Called with the stages several times a second.

    Returns:
        How the run ended this time.

    Raises:
        RunDirectoryError: There is no such run, it has finished, it was not started by
            `privsyn run`, or a process is still working on it.
        ConfigError: The app has moved, no longer takes the recorded settings, or a setting is
            malformed or out of range.
    """
    run_path = run_path.expanduser().absolute()
    begun = (run_path / "config.json").is_file()
    if begun:
        RunDirectory.open(run_path).refuse_finished()
    try:
        launch = json.loads((run_path / LAUNCH_FILE).read_text(encoding="utf-8"))
        app_path, values = launch["app"], dict(launch["run-config"])
    except OSError as error:
        if not begun:
            RunDirectory.open(run_path)  # says what is missing
        raise RunDirectoryError(
            f"The run in {run_path} was not started by `privsyn run`; resume it with "
            f"`flwr run APP --run-config 'run-dir=\"{run_path}\" resume=true'`, or where the app "
            "sets run_dir in code, with resume=True there."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{run_path / LAUNCH_FILE} is damaged.") from error
    app = load_app(app_path)
    if begun:  # what was changed by an earlier resumption stays changed
        later = RunDirectory.open(run_path).changed_settings()
        values |= {key: value for key, value in later.items() if key in values}
    changed = f"{app.path} has changed since the run began: "
    for key, value in values.items():
        _checked(app, key, value, source=changed)
    launch = {**launch, "run-config": values}
    if settings:
        new = _read_settings(app, settings)
        if place := sorted({"run-dir", "resume"} & set(new)):
            raise ConfigError(
                f"{place[0]} cannot be set here: `privsyn resume` continues the run in {run_path}."
            )
        values |= new
        check_settings(app, values)
        launch["federation-config"] = _federation(app, values)
    if begun and app.uses_run_directory and "resume" not in values:
        raise RunDirectoryError(
            f"{app.name} cannot resume: its [tool.flwr.app.config] declares no `resume`."
        )
    return _launch(app, run_path, launch, resume=begun, follow=follow)


def _federation(app: App, values: Mapping[str, ConfigValue]) -> dict[str, int | bool]:
    nodes = values.get("num-nodes", 2)
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ConfigError(f"The setting num-nodes is {nodes!r}; it must be a whole number >= 1.")
    # One process per core answers for the nodes, and never more processes than nodes: each of
    # them loads the embedding model.
    federation: dict[str, int | bool] = {"num-supernodes": nodes, "client-resources-num-cpus": 1}
    if not _ray_address(values):
        federation["init-args-num-cpus"] = min(_cpu_count(), nodes)
    if not app.uses_run_directory:
        # A ServerApp that calls sys.exit counts as completed in Flower's status; its debug log
        # is the only trace.
        federation["verbose"] = True
    return federation


def _ray_address(values: Mapping[str, Any]) -> str:
    """The running Ray cluster that a simulation is to use; empty for one of its own.

    Raises:
        ConfigError: The setting is not `host:port`.
    """
    address = values.get("ray-address", "")
    if address == "":
        return ""
    if not isinstance(address, str) or not re.fullmatch(r"[\w.-]+:[0-9]{1,5}", address):
        raise ConfigError(
            f"The setting ray-address is {address!r}; it must be host:port of the head of a Ray "
            "cluster, such as 10.0.0.1:6379, or empty for a simulation on this machine alone."
        )
    return address


def _require_cluster(address: str) -> None:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CLUSTER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise FederationError(
            f"No Ray cluster answers at ray-address = {address} ({error}); start its head with "
            "`ray start --head`."
        ) from error


def _cpu_count() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _launch(
    app: App,
    run_path: Path,
    launch: Mapping[str, Any],
    *,
    resume: bool,
    follow: Follower | None,
) -> Outcome:
    _require_simulation()
    if address := _ray_address(launch["run-config"]):
        _require_cluster(address)
    owner = OwnerFolder(run_path)
    try:
        (run_path / LAUNCH_FILE).parent.mkdir(parents=True, exist_ok=True)
        owner.make()
    except OSError as error:
        raise RunDirectoryError(
            f"The run directory {run_path}, or the folder {owner.path} for its log beside it, "
            f"cannot be written: {error.strerror or error}."
        ) from error
    wait = _RESUME_WAIT_SECONDS if resume else 0.0
    with supervisor_lock(run_path, wait_seconds=wait):
        # Processes of a killed run end within a second or so; until then they hold the run.
        with lock_file(
            run_path / ".lock", what=f"the run in {run_path}", wait_seconds=_RESUME_WAIT_SECONDS
        ):
            run = RunDirectory(run_path)
            if resume:
                run.clear_failure()
            else:
                run.refuse_existing()
                write_json(run_path / LAUNCH_FILE, launch)
            run.progress_file.unlink(missing_ok=True)
        values = dict(launch["run-config"])
        if "run-dir" in values:
            values["run-dir"] = str(run_path)
        if "resume" in values:
            values["resume"] = resume

        def show(extra: Mapping[str, Any]) -> None:
            if follow is not None:
                follow([extra, *read_progress(run_path / "progress.json")])

        starting: dict[str, Any] = {"name": "start Flower", "finished": False}
        show(starting)
        with _flower(run_path, {**launch, "resume": resume}) as flower:
            flower.submit(app, values, launch["federation-config"])
            starting["finished"] = True
            status = flower.wait(run_path, lambda: show(starting))
        show(starting)
        return _judge(app, run_path, status, _tail(flower.log, flower.log_start))


def _require_simulation() -> None:
    if os.name != "posix":
        raise FederationError("`privsyn run` needs Linux or macOS.")
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(
            "Simulation needs ray; install it with pip install 'flower-privsyn[quickstart]'."
        )


@dataclass(frozen=True, kw_only=True)
class _Status:
    """What Flower itself says: its status word and details; `died` when the process vanished."""

    word: str
    details: str
    died: bool = False


class _Flower:
    """A SuperLink of our own under a guard process, and Flower's command to talk to it."""

    def __init__(self, run_path: Path, launch: Mapping[str, Any]) -> None:
        self.run_path = run_path
        # Flower's log and state hold the time of everything that happened.
        owner = OwnerFolder(run_path)
        owner.make()
        self.log = owner.log_file
        self.home = owner.path / "home"
        # Neutral: Flower puts the SuperLink's folder on the path of every ClientApp.
        self.folder = owner.path / "empty"
        self.keys = owner.path / "keys"
        for path in (self.home, self.folder, self.keys):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True, mode=0o700)
        # Ray needs a short path for its sockets, so this cannot be inside the run directory.
        self.temporary = Path(tempfile.mkdtemp(prefix="privsyn-", dir=_short_folder()))
        superlink.write_keys(self.keys)
        superlink.write_secret(self.keys / _RAY_TOKEN, secrets.token_hex(32))
        self.mark = secrets.token_hex(16)
        self.guard: subprocess.Popen[bytes] | None = None
        self.logs: subprocess.Popen[bytes] | None = None
        self.known: dict[int, ProcessInfo] = {}
        self.run_id = ""
        self.run_path = run_path
        self.resume = bool(launch.get("resume"))
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        self.environment = self._environment(str(launch.get("working-directory", Path.cwd())))
        if address := _ray_address(launch.get("run-config", {})):
            # Flower's own configuration has no place for an address; Ray reads this. The cluster
            # has a folder of its own, where the one of this run would not be found, and a token
            # of its own, which the person who may use it has in the environment.
            self.environment["RAY_ADDRESS"] = address
            self.environment.pop("RAY_TMPDIR", None)
        else:
            self.environment.pop("RAY_ADDRESS", None)
            self.environment.pop("RAY_AUTH_TOKEN", None)  # it would count before the file
            self.environment |= {
                "RAY_TMPDIR": str(self.temporary),
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(self.keys / _RAY_TOKEN),
                # Ray listens on all addresses where it may become a cluster, on loopback where it
                # may not; the setting's name comes from the systems where that is the default.
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            }

    def _environment(self, working_directory: str) -> dict[str, str]:
        environment = {
            **os.environ,
            "FLWR_HOME": str(self.home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray is polite by default; here the nodes are the work somebody is waiting for.
            "RAY_worker_niceness": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([*_program_folders(), os.environ.get("PATH", os.defpath)]),
            WORKING_DIRECTORY: working_directory,
            RUN_DIRECTORY: str(self.run_path),
            RESUME: "1" if self.resume else "0",
            RUN_MARK: self.mark,
        }
        for name in ("NO_PROXY", "no_proxy"):
            # The SuperLink is on this machine; a proxy from the environment cannot reach it.
            known = os.environ.get(name, "")
            environment[name] = ",".join(filter(None, [known, "127.0.0.1", "localhost"]))
        if importlib.util.find_spec("flower_privsyn") is not None and not _installed():
            root = str(Path(__file__).resolve().parents[1])
            known = os.environ.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, known]))
        return environment

    # ---- start

    def start(self) -> None:
        """Start the SuperLink on a free loopback port and wait until it answers."""
        for _ in range(3):
            port = _free_port()
            if self._start_on(port):
                break
        else:
            raise FederationError(f"Flower's SuperLink found no free port; see {self.log}.")
        address = f"{_LOOPBACK}:{port}"
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{_CONNECTION}"\n\n'
            f'[superlink.{_CONNECTION}]\naddress = "{address}"\ninsecure = true\n',
            encoding="utf-8",
        )
        superlink.write_credentials(self.home, address, self.keys)

    def _start_on(self, port: int) -> bool:
        command = superlink.superlink_command(
            self.keys,
            *("--insecure", "--simulation"),
            *("--host", _LOOPBACK, "--port", str(port)),
            *("--database", str(self.home / "state.db")),
        )
        self.log.touch(mode=0o600)  # what an app prints is its owner's business
        with self.log.open("ab") as log:
            log.write(f"---- {clock.now()} privsyn starts Flower on port {port}\n".encode())
            log.flush()
            offset = log.tell()
            self.guard = self._guarded(command, log, remove=self.temporary)
        # Without proxies from the environment: the address is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.guard.poll() is not None:
                if "address already in use" in _tail(self.log, offset).lower():
                    return False
                raise FederationError(f"Flower's SuperLink did not start; see {self.log}.")
            with contextlib.suppress(OSError, urllib.error.URLError):
                opener.open(f"http://{_LOOPBACK}:{port}/health", timeout=2).close()
                return True
            time.sleep(_POLL_SECONDS / 2)
        raise FederationError(f"Flower's SuperLink did not answer in time; see {self.log}.")

    def _guarded(
        self, command: Sequence[str], log: IO[bytes], *, remove: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command that ends, with all its descendants, when this process does."""
        options = [] if remove is None else ["--remove", str(remove)]
        return subprocess.Popen(
            [sys.executable, "-m", "flower_privsyn.host.processes", *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            env=self.environment,
            # Ctrl-C in the terminal is for this process alone; it ends the others in order.
            start_new_session=True,
        )

    # ---- talk

    def _flwr(self, *arguments: str) -> dict[str, Any]:
        """Run Flower's command and return the JSON object it prints."""
        done = subprocess.run(
            [_program("flwr"), *arguments, "--format", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            check=False,
        )
        match = re.search(r"^\{.*\}\s*\Z", done.stdout, re.DOTALL | re.MULTILINE)
        with contextlib.suppress(ValueError):
            if match:
                answer = json.loads(match.group())
                if isinstance(answer, dict):
                    return answer
        return {"success": False, "error-message": (done.stderr or done.stdout).strip()}

    def submit(
        self,
        app: App,
        values: Mapping[str, ConfigValue],
        federation: Mapping[str, ConfigValue],
    ) -> None:
        """Hand the app to the SuperLink."""
        arguments = ["run", str(app.path), _CONNECTION]
        if values:
            settings = self.home / "run-config.toml"
            settings.write_text(_to_toml(values), encoding="utf-8")
            arguments += ["--run-config", str(settings)]
        arguments += [
            "--federation-config",
            " ".join(f"{key}={_toml_value(value)}" for key, value in federation.items()),
        ]
        answer = self._flwr(*arguments)
        if not answer.get("success"):
            reason = _one_line(str(answer.get("error-message", ""))) or "no reason given"
            raise FederationError(f"Flower refused the app {app.path}: {reason}")
        self.run_id = str(answer["run-id"])
        # The simulation's own output goes to Flower's state only; this copies it to the log.
        with self.log.open("ab") as log:
            self.logs = self._guarded(
                [_program("flwr"), "log", self.run_id, _CONNECTION, "--stream"], log
            )

    def status(self) -> _Status:
        """What Flower says about the run now."""
        runs = self._flwr("list", _CONNECTION, "--run-id", self.run_id).get("runs") or [{}]
        return _Status(
            word=str(runs[0].get("status", "unknown")),
            details=_one_line(str(runs[0].get("status-details", ""))),
        )

    # ---- follow

    def wait(self, run_path: Path, show: Callable[[], None]) -> _Status:
        """Wait for the simulation to end; `show` is called several times a second."""
        assert self.guard is not None
        simulation: ProcessInfo | None = None
        asked = listed = time.monotonic()
        recorded, linger = None, _LINGER_SECONDS
        while self.guard.poll() is None:
            show()
            time.sleep(_POLL_SECONDS)
            if recorded is None and _recorded_end(run_path):
                recorded = time.monotonic()
                # The work is over. What is left is taking Ray down and, after an unexpected
                # error, its traceback on the way to the log.
                refused = not _recorded_end(run_path).get("unexpected", True)
                linger = _REFUSED_SECONDS if refused else _LINGER_SECONDS
            if recorded is not None and time.monotonic() - recorded > linger:
                break
            if simulation is None or time.monotonic() - listed > _LIST_SECONDS:
                listed = time.monotonic()
                self.known |= {info.pid: info for info in descendants(self.guard.pid)}
            if simulation is None:
                simulation = next(
                    (info for info in self.known.values() if info.name == "flwr-simulation"), None
                )
                # Where processes cannot be told by name, or one was over before it was seen.
                if simulation is None and time.monotonic() - asked > _ASK_SECONDS:
                    asked = time.monotonic()
                    status = self.status()
                    if status.word.startswith("finished"):
                        return status
            elif not is_alive(simulation.pid, simulation.started):
                break
        else:
            return _Status(word="unknown", details="Flower's SuperLink ended", died=True)
        if self.logs is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.logs.wait(timeout=_LOG_SECONDS)  # it ends by itself once everything is copied
        if _recorded_end(run_path):
            return _Status(word="recorded", details="")
        status = self.status()
        # Flower itself notices a killed simulation by a missing heartbeat, a minute later.
        died = not status.word.startswith("finished")
        return _Status(word=status.word, details=status.details, died=died)

    # ---- end

    def close(self) -> None:
        """End every process of the run and remove what only they needed."""
        for process in (self.logs, self.guard):
            if process is None:
                continue
            if process.stdin is not None:
                process.stdin.close()  # the guard's signal to end everything
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
        # Nothing is left unless a guard itself was killed. The mark finds what started last, the
        # list what has overwritten its own environment, as Ray's agents do.
        kill(self.known.values())
        for _ in range(50):
            left = marked_processes(self.mark)
            if not left:
                break
            kill(left)
            time.sleep(0.05)
        for path in (self.temporary, self.home, self.folder, self.keys):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _flower(run_path: Path, launch: Mapping[str, Any]) -> Iterator[_Flower]:
    flower = _Flower(run_path, launch)
    try:
        flower.start()
        yield flower
    except BaseException as error:
        # The processes are ended first: a ServerApp that is still alive records its own end.
        flower.close()
        _record_failure(run_path, error)
        raise
    else:
        flower.close()


def _recorded_end(run_path: Path) -> dict[str, Any]:
    """The state of the run if it says that the run is over, else nothing."""
    state = RunDirectory(run_path).state
    return state if state.get("status") in {"finished", "failed"} else {}


def _record_failure(run_path: Path, error: str | BaseException) -> None:
    if (run_path / "config.json").is_file():
        run = RunDirectory.open(run_path)
        if run.status == "running":
            run.mark_failed(error)


def _judge(app: App, run_path: Path, status: _Status, log: str) -> Outcome:
    """Decide how a run ended; Flower's own status is believed only where nothing else is."""
    run = RunDirectory.open(run_path) if (run_path / "config.json").is_file() else None
    if run is not None and run.status == "finished":
        return Outcome(path=run_path, error=None)
    if run is not None and run.status == "failed":
        return Outcome(path=run_path, error=run.error, unexpected=bool(run.state.get("unexpected")))
    unexpected = True
    ours = re.findall(r"^flower_privsyn\.errors\.\w+: (.+)$", log, re.MULTILINE)
    if status.died:
        sentence = "The ServerApp was killed before the run was finished."
    elif status.word == "finished:completed":
        if not app.uses_run_directory and _NO_CONTEXT not in log:
            return Outcome(path=run_path, error=None)
        sentence = "The ServerApp ended early, without an exception and without a result."
    elif ours:
        sentence, unexpected = _one_line(ours[-1]), False
    else:
        details = status.details.removeprefix("Simulation failed with exception: ")
        sentence = f"The ServerApp failed: {details or status.word}"
    if run is not None:
        run.mark_failed(sentence)
    return Outcome(path=run_path, error=sentence, unexpected=unexpected)


# -------------------------------------------------------------------- small things


def _program_folders() -> list[str]:
    # Not resolved: in a virtual environment the interpreter is a link, its scripts are beside it.
    folders = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return list(dict.fromkeys(folders))


def _program(name: str) -> str:
    folders = os.pathsep.join([*_program_folders(), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=folders)
    if found is None:
        raise MissingExtraError(
            f"Flower's command {name} is not installed beside {sys.executable}; "
            "install it with pip install 'flower-privsyn[quickstart]'."
        )
    return found


def _short_folder() -> str:
    # The path of a Unix socket has about a hundred characters, of which Ray uses most.
    usual = tempfile.gettempdir()
    return "/tmp" if len(usual) > 20 and os.access("/tmp", os.W_OK | os.X_OK) else usual


def _installed() -> bool:
    from importlib import metadata

    with contextlib.suppress(metadata.PackageNotFoundError):
        metadata.distribution("flower-privsyn")
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _tail(path: Path, offset: int, limit: int = 2_000_000) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(offset, size - limit))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]
