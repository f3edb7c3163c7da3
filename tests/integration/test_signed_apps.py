"""A SuperNode that runs what its owner's key has signed, by the recipe of the deployment."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from flower_privsyn.client_apps.account import NodeLedger
from tests.support.deployed import deployment
from tests.support.federation_app import write_app
from tests.support.simulation import SCRIPTS, free_port

SCRIPT = Path(__file__).parents[2] / "examples" / "deployment" / "signed_apps.py"


def signed_app(signer: str, folder: Path) -> Path:
    """An app of its signer's name, and its bundle beside the signature among those served."""
    app = write_app(folder / "apps" / signer)
    project = app / "pyproject.toml"
    text = project.read_text().replace('name = "six-users"', f'name = "{signer}"')
    project.write_text(text.replace("noise-multiplier = 0.0", "noise-multiplier = 0.5"))
    served, key = folder / "served", folder / signer
    served.mkdir(exist_ok=True)
    for command in (
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key],
        [SCRIPTS / "flwr", "build", "--app", app],
        [sys.executable, SCRIPT, "sign", f"tests.{signer}.fab", key, f"fpk_{signer}"],
    ):
        for bundle in served.glob(f"tests.{signer}.1*.fab"):  # a digest is in its name
            bundle.rename(served / f"tests.{signer}.fab")
        subprocess.run([str(word) for word in command], cwd=served, check=True)
    return app


def ended(app: str | Path, run: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run an app, and how it ended."""
    settings = f"num-nodes=1 run-dir='{run}'"
    subprocess.run(
        ["flwr", "run", str(app), "loop", "--run-config", settings], env=environment, check=True
    )
    for _ in range(3000):
        with suppress(OSError, ValueError):
            state: dict[str, str] = json.loads((run / "state.json").read_text())
            if state["status"] != "running":
                return state
        time.sleep(0.1)
    raise AssertionError("the run did not end")


def test_the_hub_hands_out_apps_and_no_key_beside_them(tmp_path: Path) -> None:
    (tmp_path / "auditor").write_text("secret")
    (tmp_path / "a.fab").write_bytes(b"app")
    hub = partial(runpy.run_path(str(SCRIPT))["Hub"], directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def status(path: str) -> int:
        link = HTTPConnection("127.0.0.1", server.server_port)
        link.request("GET", path)
        return link.getresponse().status

    try:
        assert status("/a.fab") == 200
        for path in ("/auditor", "/auditor?a.fab", "/auditor#a.fab", "/a.fab/../auditor", "/"):
            assert status(path) == 404, path
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow  # three runs by SuperLink and SuperNode, some 15 s each
@pytest.mark.timeout(900)
def test_a_node_answers_apps_that_its_owner_trusts_and_no_other(tmp_path: Path) -> None:
    unsigned = signed_app("auditor", tmp_path)
    signed_app("stranger", tmp_path)
    trusted, port = tmp_path / "trusted.yaml", str(free_port())
    trusted.write_text(f"fpk_auditor: {(tmp_path / 'auditor.pub').read_text()}")
    hub = subprocess.Popen(
        [sys.executable, str(SCRIPT), "serve", str(tmp_path / "served"), "--port", port]
    )
    try:
        with deployment(
            tmp_path / "federation",
            1,
            superlink={"FLWR_SUPERGRID_API_URL": f"http://127.0.0.1:{port}"},
            node=["--trusted-entities", str(trusted)],
        ) as environment:
            states = [
                ended(app, tmp_path / run, environment)
                for run, app in (
                    ("signed", "@tests/auditor"),
                    ("by a stranger", "@tests/stranger"),
                    ("unsigned", unsigned),
                )
            ]
    finally:
        hub.kill()
        hub.wait()
    assert states[0]["status"] == "finished"
    for state in states[1:]:
        assert state["error"].endswith("nothing was spent")
    account = NodeLedger("default", folder=tmp_path / "federation" / "ledgers").account()
    assert [charge.spec.round for charge in account.charges] == [1, 2]
    log = (tmp_path / "federation" / "node0.log").read_text()
    assert log.count("FAB verification failed") == 1
    assert log.count("The FAB could not be verified") == 1
