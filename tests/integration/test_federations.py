"""The same six users in real federations: on Ray, by own processes, and SuperLink and SuperNodes.

All release the same to the bit, noise and all: the app draws it by a seed.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from flower_privsyn.client_apps.account import NodeLedger
from flower_privsyn.client_apps.policy import NodePolicy
from tests.support.deployed import deployment
from tests.support.federation_app import write_app
from tests.support.simulation import ROUNDS, ledger, simulate, sums
from tests.support.sockets import addresses

SEEDED = "random=InsecureRandom(1)"


def deploy(app: Path, folder: Path, num_nodes: int) -> Path:
    """Run the app in a deployment and return its run directory."""
    run = folder.parent / f"{folder.name}-run"
    with deployment(folder, num_nodes) as environment:
        settings = f"num-nodes={num_nodes} run-dir='{run}'"
        done = subprocess.run(
            ["flwr", "run", str(app), "loop", "--run-config", settings],
            env=environment, cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline:
            with suppress(OSError, ValueError):
                state = json.loads((run / "state.json").read_text())
                if state["status"] != "running":
                    assert state["status"] == "finished", state
                    return run
            time.sleep(0.5)
    logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
    raise AssertionError(f"the deployment did not finish:\n{logs}")


def seeded_app(folder: Path) -> Path:
    """The app with noise that a seed draws, which no setting can ask for."""
    app = write_app(folder)
    for file, before, after in (
        ("six/server_app.py", "variation=ShuffleWords())", f"variation=ShuffleWords(), {SEEDED})"),
        (
            "six/server_app.py",
            "from flower_privsyn.strategies",
            "from flower_privsyn.privacy import InsecureRandom\nfrom flower_privsyn.strategies",
        ),
        ("pyproject.toml", "noise-multiplier = 0.0", "noise-multiplier = 0.5"),
    ):
        text = (app / file).read_text()
        assert before in text
        (app / file).write_text(text.replace(before, after))
    return app


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seeded_app(tmp_path_factory.mktemp("app") / "six-users")


@pytest.fixture(scope="module")
def in_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a Ray simulation of two nodes, its settings made in code."""
    folder = tmp_path_factory.mktemp("on-ray")
    app = seeded_app(folder / "app")
    server = app / "six" / "server_app.py"
    project = app / "pyproject.toml"
    head, _, config = project.read_text().partition("[tool.flwr.app.config]\n")
    public = next(line for line in config.splitlines() if line.startswith("public-text"))
    project.write_text(
        head + '[tool.flwr.app.config]\nnum-nodes = 2\nbehaviour = "honest"\napp-does = ""\n'
    )
    source = server.read_text()
    start = source.index("    config = ")
    stop = source.index("    return PrivateEvolution(config")
    in_code = f"""    config = PrivateEvolutionConfig(
        noise_multiplier=0.5, num_users=6, num_nodes=2, num_rounds={len(ROUNDS)}, num_candidates=24,
        lookahead=1, clip="l2", accept_noise=True, synthetic_samples=0,
        node_timeout=120.0, public_text={public.partition(" = ")[2]},
    )
"""
    server.write_text(source[:start] + in_code + source[stop:])
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            seen.update(addresses([one.pid for one in psutil.Process().children(recursive=True)]))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert simulate(app, folder / "run", ray=True) is None
    finally:
        ended.set()
        looking.join()
    assert seen == {"127.0.0.1"}  # Ray, too, is for this machine alone
    return folder / "run"


@pytest.fixture(scope="module")
def on_ray(in_code: Path) -> list[np.ndarray]:
    """What a Ray simulation releases."""
    return sums(in_code)


@pytest.mark.timeout(600)
def test_superlink_and_supernode_processes(
    app: Path, on_ray: list[np.ndarray], tmp_path: Path
) -> None:
    run = deploy(app, tmp_path / "deployment", 2)
    for simulated, deployed in zip(on_ray, sums(run), strict=True):
        assert np.array_equal(simulated, deployed)
    # Every SuperNode has an owner, whose account has a line for every answer.
    account = NodeLedger("default", folder=tmp_path / "deployment" / "ledgers").account()
    assert len(account.charges) == 2 * len(ROUNDS)
    assert 1.0 < account.epsilon(NodePolicy()) < np.inf


def test_processes_of_this_machine(app: Path, on_ray: list[np.ndarray], tmp_path: Path) -> None:
    assert simulate(app, tmp_path / "run") is None
    for simulated, here in zip(on_ray, sums(tmp_path / "run"), strict=True):
        assert np.array_equal(simulated, here)


@pytest.mark.timeout(600)
def test_an_app_configured_in_code_gets_the_run_directory_of_the_command(in_code: Path) -> None:
    assert [line["round"] for line in ledger(in_code) if line["event"] == "release"] == [*ROUNDS]
    assert json.loads((in_code / "state.json").read_text())["status"] == "finished"


@pytest.mark.timeout(600)
def test_a_node_that_fails_says_nothing_about_its_text(app: Path, tmp_path: Path) -> None:
    error = simulate(app, tmp_path / "run", behaviour="leak", num_users=6)
    assert error is not None
    assert "3 users are ready on 1 of 2 nodes, 6 were planned" in error
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert b"dear diary" not in path.read_bytes(), path
