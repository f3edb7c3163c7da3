"""A simulation on two Ray nodes."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.host.processes import descendants, is_running
from flower_privsyn.host.superlink import write_secret
from flower_privsyn.runs.owner import OwnerFolder
from tests.support.federation_app import write_app
from tests.support.simulation import SCRIPTS, free_port, simulate, sums

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_app(tmp_path / "app", num_users=24)


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster asks for a token, as docs/simulation.md has it."""
    write_secret(tmp_path / "token", secrets.token_hex(32))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))


@contextmanager
def ray_node(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One Ray node with one processor; when its standard input closes, nothing of it is left."""
    log = (folder / f"{name}.log").open("wb")
    node = subprocess.Popen(
        [
            sys.executable, "-m", "flower_privsyn.host.processes", "--",
            str(SCRIPTS / "ray"), "start", "--block", "--num-cpus=1", "--disable-usage-stats",
            "--object-store-memory=100000000", *arguments,
        ],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        cwd=folder,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path.cwd())},
        start_new_session=True,
    )  # fmt: skip
    try:
        yield node
    finally:
        stop(node)


def stop(node: subprocess.Popen[bytes]) -> None:
    assert node.stdin is not None
    node.stdin.close()
    node.wait(timeout=60)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Two Ray nodes on loopback: the address of the head, and the process of the other."""
    folder.mkdir()
    short = tempfile.mkdtemp(prefix="ray-")  # paths of sockets have a hundred characters
    address = f"127.0.0.1:{free_port()}"
    head = (
        "--head", "--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}",
        f"--temp-dir={short}", "--include-dashboard=false",
        "--min-worker-port=21000", "--max-worker-port=21099",
    )  # fmt: skip
    worker = (
        f"--address={address}", "--node-ip-address=127.0.0.2",
        "--min-worker-port=22000", "--max-worker-port=22099",
    )  # fmt: skip
    with _removed(short), ray_node(folder, "head", *head):
        wait_for(lambda: answers(address), folder / "head.log")
        with ray_node(folder, "worker", *worker) as other:
            wait_for(lambda: "Ray runtime started" in (folder / "worker.log").read_text(),
                     folder / "worker.log")  # fmt: skip
            yield address, other


@contextmanager
def _removed(folder: str) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for(holds: object, log: Path) -> None:
    deadline = time.monotonic() + 240
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def test_a_cluster_of_two_gives_the_histograms_of_one_machine(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path / "c") as (address, _):
        with monkeypatch.context() as stranger:
            stranger.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "guess"))
            write_secret(tmp_path / "guess", secrets.token_hex(32))
            assert simulate(app, tmp_path / "no", num_nodes=8, num_rounds=2, ray_address=address)
            assert "AuthenticationError" in (tmp_path / "no" / "flower.log").read_text()
        below = descendants(os.getpid())
        run = tmp_path / "run"
        error = simulate(app, run, num_nodes=8, num_rounds=2, ray_address=address)
        assert error is None, OwnerFolder(run).log_file.read_text()[-3000:]
    assert not [info for info in below if is_running(info)]
    assert simulate(app, tmp_path / "alone", num_nodes=8, num_rounds=2) is None
    for one, other in zip(sums(run), sums(tmp_path / "alone"), strict=True):
        assert one.sum() > 0
        assert np.array_equal(one, other)
