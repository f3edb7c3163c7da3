"""A SuperLink and SuperNodes on loopback, by TLS."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.simulation import SCRIPTS, free_port

CERTIFICATES = Path(__file__).parents[2] / "examples" / "deployment" / "certificates.sh"


@contextmanager
def deployment(
    folder: Path,
    num_nodes: int,
    *,
    superlink: Mapping[str, str] | None = None,
    node: Sequence[str] = (),
) -> Iterator[dict[str, str]]:
    """A SuperLink and SuperNodes on loopback, by TLS; yields Flower's commands' environment.

    Args:
        folder: of all of it, with a log of each process; it is made.
        num_nodes: SuperNodes.
        superlink: what the SuperLink finds in its environment as well.
        node: further options of every SuperNode.
    """
    folder.mkdir()
    keys = folder / "keys"
    subprocess.run(["sh", str(CERTIFICATES), str(keys), "127.0.0.1"], check=True)
    public = keys / "ca.crt"
    # The runs here add little noise, which an owner has to allow.
    (folder / "policy.toml").write_text("max-epsilon = inf\n")
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PRIVSYN_CACHE": str(folder / "cache"),
        "PRIVSYN_NODE_LEDGERS": str(folder / "ledgers"),
        "PRIVSYN_NODE_POLICY": str(folder / "policy.toml"),
        "PATH": os.pathsep.join([str(SCRIPTS), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }
    port = free_port()
    processes: list[subprocess.Popen[bytes]] = []

    def launch(home: str, *command: str, **more: str) -> None:
        (folder / home).mkdir()
        log = (folder / f"{home}.log").open("wb")
        processes.append(
            subprocess.Popen(
                command,
                env={**environment, **more, "FLWR_HOME": str(folder / home)},
                cwd=folder / home,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )

    try:
        launch(
            "superlink", "flower-superlink", "--host", "127.0.0.1",
            "--port", str(port), "--database", str(folder / "state.db"),
            "--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key"),
            "--ssl-ca-certfile", str(public), **(superlink or {}),
        )  # fmt: skip
        for _ in range(600):
            with suppress(OSError):
                urllib.request.urlopen(
                    f"https://127.0.0.1:{port}/health",
                    timeout=2,
                    context=ssl.create_default_context(cafile=str(public)),
                ).close()
                break
            time.sleep(0.1)
        for number in range(num_nodes):
            launch(
                f"node{number}", "flower-supernode", "--root-certificates", str(public),
                "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1",
                "--port", str(free_port()),
                "--node-config", f"partition-id={number} num-partitions={num_nodes}", *node,
            )  # fmt: skip
        (folder / "cli").mkdir()
        (folder / "cli" / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{public}"\n'
        )
        yield {**environment, "FLWR_HOME": str(folder / "cli")}
    finally:
        for process in reversed(processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait()
