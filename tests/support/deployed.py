"""A SuperLink and SuperNodes on loopback, by TLS."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.simulation import SCRIPTS, free_port


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key for 127.0.0.1 and its certificate, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    there = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(there, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret, public = folder / "key.pem", folder / "certificate.pem"
    secret.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(signed.public_bytes(pem))
    return secret, public


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
    secret, public = certificate(folder)
    # The runs here add little noise, which an owner has to allow.
    (folder / "policy.toml").write_text("max-epsilon = inf\n")
    environment = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
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
            "--ssl-certfile", str(public), "--ssl-keyfile", str(secret),
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
