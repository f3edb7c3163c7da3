"""The whole deployment on one machine: TLS, known SuperNodes, owners, secure aggregation, a run.

    python loopback.py FOLDER APP --users users.jsonl [--nodes 4] [--run-config "num-rounds=2"]

Deals the users to as many owners, each with a key, a policy that lists the keys of all, a folder of
its own and a SuperNode; starts a SuperLink that knows the SuperNodes by their keys; submits APP and
waits for its end. The run directory is FOLDER/run. Everything is stopped when it ends. The same
command once more, with resume=true in --run-config, goes on with a run that was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from flower_privsyn import environment
from flower_privsyn.files import read_json

HERE = Path(__file__).parent
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}


class Federation:
    """A SuperLink and SuperNodes, each in a folder of its own.

    Args:
        folder: of all of them.
        names: of the owners.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = folder.absolute(), names
        self.port = _free_port()
        self.before: dict[str, Any] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {**os.environ, **ENVIRONMENT}

    def prepare(self, users: Path) -> None:
        """Keys, policies and everybody's own users."""
        self.folder.mkdir(parents=True, exist_ok=True)
        keys = str(self.folder / "keys")
        self.call("sh", str(HERE / "certificates.sh"), keys, "127.0.0.1", *self.names)
        public = []
        for name in self.names:
            (self.folder / name).mkdir(exist_ok=True)
            key = self.folder / name / "node-key"
            init = [] if key.exists() else ["--init"]
            public.append(self.call("privsyn", "node", "key", str(key), *init).strip())
        # Nothing but the ends of lines parts rows: a text may hold U+2028.
        rows = [row for row in users.read_text(encoding="utf-8").split("\n") if row.strip()]
        owner = {
            person: self.names[place % len(self.names)]
            for place, person in enumerate(dict.fromkeys(json.loads(r)["client_id"] for r in rows))
        }
        for name in self.names:
            own = [row for row in rows if owner[json.loads(row)["client_id"]] == name]
            (self.folder / name / "users.jsonl").write_text("\n".join(own) + "\n", encoding="utf-8")
            (self.folder / name / "policy.toml").write_text(
                f"node-keys = {json.dumps(public)}\nrequire-secure-aggregation = true\n"
                "max-epsilon = 10.0\n"
            )

    def start(self) -> None:
        """The SuperLink, then the SuperNodes that it is told of."""
        self.start_superlink()
        keys, home = self.folder / "keys", self.folder / "cli"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\naddress = "127.0.0.1:'
            f'{self.port}"\nroot-certificates = "{keys / "ca.crt"}"\n'
        )
        self.environment["FLWR_HOME"] = str(home)
        for name in self.names:
            self._register(keys / "nodes" / f"{name}.pub")
            self.start_node(name)

    def start_superlink(self) -> None:
        """The SuperLink, at its port and with its database; also after it was killed."""
        keys = self.folder / "keys"
        self._launch(
            "superlink", {}, "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(self.folder / "state.db"), "--enable-supernode-auth",
            "--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.pem"),
            "--ssl-keyfile", str(keys / "server.key"),
        )  # fmt: skip
        self._wait_until_healthy(keys / "ca.crt")

    def start_node(self, name: str) -> None:
        """One SuperNode, with its owner's data, policy, key, account and cache."""
        own = self.folder / name
        node = {
            "data": own / "users.jsonl", "dataset": name, "server": "loopback",
            "policy": own / "policy.toml", "node-key": own / "node-key",
        }  # fmt: skip
        self._launch(
            name,
            {
                environment.CACHE: str(own / "cache"),
                environment.NODE_LEDGERS: str(own / "ledgers"),
                environment.NODE_STATE: str(own / "state"),
            },
            "flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1",
            "--port", str(_free_port()), "--root-certificates", str(self.folder / "keys/ca.crt"),
            "--auth-supernode-private-key", str(self.folder / "keys/nodes" / name),
            "--node-config", " ".join(f'{key}="{value}"' for key, value in node.items()),
        )  # fmt: skip

    def submit(self, app: Path, run_config: str) -> None:
        """Hand an app to the SuperLink; `resume=true` goes on with the run that was begun."""
        run = self.folder / "run"
        settings = (
            f"secure-aggregation=true num-nodes={len(self.names)} run-dir='{run}' {run_config}"
        )
        self.before = self._state()
        self.call("flwr", "run", str(app), "loopback", "--run-config", settings)

    def wait(self, *, timeout: float) -> str:
        """How the run ended, as its directory says; "unfinished" after so many seconds."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            state = self._state()
            # What was there before says how the run that goes on now ended last time.
            if state not in ({}, self.before) and state["status"] != "running":
                return str(state["status"])
            time.sleep(1.0)
        return "unfinished"

    def call(self, *command: str) -> str:
        """What a command of Flower or of the package prints.

        Raises:
            SystemExit: it failed; with what it printed.
        """
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:3])} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        """End everything that was started here."""
        for process in reversed(self.processes.values()):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _launch(self, name: str, more: dict[str, str], *command: str) -> None:
        home = self.folder / name
        home.mkdir(exist_ok=True)
        with (home / "log.txt").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env={**self.environment, "FLWR_HOME": str(home / "flwr"), **more},
                cwd=home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _state(self) -> dict[str, Any]:
        return read_json(self.folder / "run" / "state.json")

    def _register(self, key: Path) -> None:
        """Tell the SuperLink of a SuperNode; its database may know it from an earlier start."""
        try:
            self.call("flwr", "supernode", "register", str(key), "loopback")
        except SystemExit as failed:
            if "already in use" not in str(failed):
                raise

    def _wait_until_healthy(self, authority: Path) -> None:
        trusted = ssl.create_default_context(cafile=str(authority))
        while self.processes["superlink"].poll() is None:
            with suppress(OSError):
                url = f"https://127.0.0.1:{self.port}/health"
                urllib.request.urlopen(url, timeout=2, context=trusted).close()
                return
            time.sleep(0.1)
        raise SystemExit(f"the SuperLink has ended; see {self.folder / 'superlink/log.txt'}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("app", type=Path)
    parser.add_argument("--users", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--run-config", default="")
    parser.add_argument("--timeout", type=float, default=3600.0)
    options = parser.parse_args()
    names = [f"owner-{number}" for number in range(1, options.nodes + 1)]
    federation = Federation(options.folder, names)
    federation.prepare(options.users)
    try:
        federation.start()
        federation.submit(options.app, options.run_config)
        status = federation.wait(timeout=options.timeout)
    finally:
        federation.stop()
    print(f"{status}: {federation.folder / 'run'}")
    raise SystemExit(0 if status == "finished" else 1)


if __name__ == "__main__":
    main()
