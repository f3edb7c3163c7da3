"""Flower for one run: a SuperLink of its own, the command that talks to it, and its end.

`flwr run` leaves a SuperLink running, lets the SuperLink's folder decide which client code runs,
and reaches for the network. Here a SuperLink belongs to one run, starts from an empty folder and
with the network features off, and leaves no process behind, whatever happens to the process that
called it.

Only Flower's commands and the text they print are used here, none of its Python interfaces.
"""

from __future__ import annotations

import contextlib
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
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

import flower_privsyn
from flower_privsyn import clock
from flower_privsyn.environment import RESUME, RUN_DIRECTORY, RUN_MARK, WORKING_DIRECTORY
from flower_privsyn.errors import FederationError, MissingExtraError
from flower_privsyn.files import default_cache_directory, full_disk
from flower_privsyn.host import superlink
from flower_privsyn.host.app import App, ConfigValue, ray_address
from flower_privsyn.host.processes import (
    descendants,
    is_running,
    kill,
    marked_processes,
    name_of,
)
from flower_privsyn.runs import RunDirectory
from flower_privsyn.runs.owner import OwnerFolder

_LOOPBACK = "127.0.0.1"
_RAY_TOKEN = "ray"
_CONNECTION = "privsyn"
_POLL_SECONDS = 0.2
_START_SECONDS = 90.0
_LINGER_SECONDS = 30.0
_ASK_SECONDS = 10.0
_LIST_SECONDS = 2.0
_LOG_SECONDS = 3.0
_LOG_BYTES = 2_000_000
#: What Flower says when the app's own function has returned, and then, as after an exception, when
#: its thread ends. The nodes may still be at work.
_SERVER_APP_ENDED = "ServerApp finished running."


@dataclass(frozen=True, kw_only=True)
class FlowerStatus:
    """What Flower itself says: its status word and details; `died` when the process vanished."""

    word: str
    details: str
    died: bool = False


class Flower:
    """A SuperLink of our own under a guard process, and Flower's command to talk to it.

    Args:
        run_path: the run directory.
        launch: how the run was asked for, as its owner's folder says: `run-config` and
            `working-directory`, each of which may be missing.
        resume: whether a run goes on.
    """

    def __init__(self, run_path: Path, launch: Mapping[str, Any], *, resume: bool = False) -> None:
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
        superlink.write_keys(self.keys)
        superlink.write_secret(self.keys / _RAY_TOKEN, secrets.token_hex(32))
        # Ray needs a short path for its sockets, so this cannot be inside the run directory. After
        # what may fail: nobody would remove it.
        self.temporary = Path(tempfile.mkdtemp(prefix="privsyn-", dir=_short_folder()))
        self.mark = secrets.token_hex(16)
        self.guard: subprocess.Popen[bytes] | None = None
        self.logs: subprocess.Popen[bytes] | None = None
        self.known: dict[int, psutil.Process] = {}
        self.run_id = ""
        self.resume = resume
        self.log_start = self.log.stat().st_size if self.log.exists() else 0
        self.environment = self._environment(str(launch.get("working-directory", Path.cwd())))
        if address := ray_address(launch.get("run-config", {})):
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
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):
            # A notebook asks every program for colours; Flower's answers would have them inside.
            environment.pop(name, None)
        for name in ("NO_PROXY", "no_proxy"):
            # The SuperLink is on this machine; a proxy from the environment cannot reach it.
            known = os.environ.get(name, "")
            environment[name] = ",".join(filter(None, [known, _LOOPBACK, "localhost"]))
        if importlib.util.find_spec("flower_privsyn") is not None and not _installed():
            root = str(Path(flower_privsyn.__file__).resolve().parents[1])
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
            reason = one_line(str(answer.get("error-message", ""))) or "no reason given"
            raise FederationError(f"Flower refused the app {app.path}: {reason}")
        self.run_id = str(answer["run-id"])
        # The simulation's own output goes to Flower's state only; this copies it to the log.
        with self.log.open("ab") as log:
            self.logs = self._guarded(
                [_program("flwr"), "log", self.run_id, _CONNECTION, "--stream"], log
            )

    def status(self) -> FlowerStatus:
        """What Flower says about the run now."""
        runs = self._flwr("list", _CONNECTION, "--run-id", self.run_id).get("runs") or [{}]
        return FlowerStatus(
            word=str(runs[0].get("status", "unknown")),
            details=one_line(str(runs[0].get("status-details", ""))),
        )

    # ---- follow

    def wait(self, show: Callable[[], None]) -> FlowerStatus:
        """Wait for the app to end; `show` is called several times a second.

        The run may be over long before: what an app does with its texts is as much a part of it.
        """
        assert self.guard is not None
        simulation: psutil.Process | None = None
        asked = listed = time.monotonic()
        ended: float | None = None
        while self.guard.poll() is None:
            show()
            time.sleep(_POLL_SECONDS)
            if simulation is None or time.monotonic() - listed > _LIST_SECONDS:
                listed = time.monotonic()
                self.known |= {process.pid: process for process in descendants(self.guard.pid)}
                if ended is None and _SERVER_APP_ENDED in self.read_log():
                    ended = listed
            # Flower waits for nodes that are at work, for whose answer nobody is left.
            if ended is not None and time.monotonic() - ended > _LINGER_SECONDS:
                break
            if simulation is None:
                simulation = next(
                    (one for one in self.known.values() if name_of(one) == "flwr-simulation"), None
                )
                # Where processes cannot be told by name, or one was over before it was seen.
                if simulation is None and time.monotonic() - asked > _ASK_SECONDS:
                    asked = time.monotonic()
                    status = self.status()
                    if status.word.startswith("finished"):
                        return status
            elif not is_running(simulation):
                break
        else:
            return FlowerStatus(word="unknown", details="Flower's SuperLink ended", died=True)
        if self.logs is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.logs.wait(timeout=_LOG_SECONDS)  # it ends by itself once everything is copied
        told = self.read_log().count(_SERVER_APP_ENDED)
        if told > 1 and RunDirectory(self.run_path).status == "finished":
            return FlowerStatus(word="finished:completed", details="")
        status = self.status()
        # Flower itself notices a killed simulation by a missing heartbeat, a minute later.
        died = not (told or status.word.startswith("finished"))
        return FlowerStatus(word=status.word, details=status.details, died=died)

    # ---- end

    def read_log(self) -> str:
        """What Flower and the app printed in this run, the end of it where it is long."""
        return _tail(self.log, self.log_start)

    def full_disk(self) -> Path | None:
        """Where nothing more can be written, of all folders of this run; None where all is well."""
        return full_disk([self.run_path, self.home, self.temporary, default_cache_directory()])

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


def _to_toml(values: Mapping[str, ConfigValue]) -> str:
    return "".join(f"{_toml_text(key)} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _toml_text(value) if isinstance(value, str) else repr(value)


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML also wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


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
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _tail(path: Path, offset: int) -> str:
    """What a file holds from a byte on, the end of it where that is much."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(offset, size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def one_line(text: str) -> str:
    """What Flower or an app printed, as one line of at most 1,000 letters."""
    return " ".join(text.split())[:1000]
