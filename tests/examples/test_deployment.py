"""The deployment to copy: its keys, its files, and the whole of it by processes on loopback."""

from __future__ import annotations

import json
import shlex
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from flower_privsyn.node import NodeLedger, NodePolicy
from flower_privsyn.privacy import PrivacyLedger, Release, Sampling, release_epsilon
from tests.support.federation import make_users
from tests.support.run_files import releases
from tests.support.simulation import SCRIPTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deployment"


def certificates(folder: Path, *names: str) -> None:
    command = [sys.executable, str(FOLDER / "certificates.py"), str(folder), "--nodes", *names]
    subprocess.run([*command, "--host", "127.0.0.1", "--host", "superlink"], check=True)


def test_certificates_are_those_of_the_hosts_and_secrets_their_owners(tmp_path: Path) -> None:
    certificates(tmp_path, "north")
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    certificates(tmp_path, "north", "south")  # a node that comes later
    assert {
        **kept,
        **{n: (tmp_path / "nodes" / n).read_bytes() for n in ("south", "south.pub")},
    } == {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    server = x509.load_pem_x509_certificate(kept["server.pem"])
    authority = x509.load_pem_x509_certificate(kept["ca.crt"])
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    key = load_ssh_private_key(kept["north"], None)
    assert key.public_key() == load_ssh_public_key(kept["north.pub"])
    for secret in ("ca.key", "server.key", "nodes/north"):
        assert (tmp_path / secret).stat().st_mode & 0o777 == 0o600


def test_what_compose_and_systemd_start_are_commands_with_options_that_there_are() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"superlink", "owner-1", "owner-2", "owner-3", "owner-4"}
    commands = [shlex.split(services["superlink"]["command"])]
    commands.append(shlex.split(services["owner-1"]["command"][-1])[1:])
    for unit in (FOLDER / "systemd").glob("*.service"):
        text = unit.read_text().replace("\\\n", " ")
        line = next(one for one in text.splitlines() if one.startswith("ExecStart="))
        commands.append(shlex.split(line.removeprefix("ExecStart=")))
    assert len(commands) == 4
    helped = {
        name: subprocess.run([str(SCRIPTS / name), "--help"], capture_output=True, text=True).stdout
        for name in ("flower-superlink", "flower-supernode")
    }
    for command in commands:
        options = [word for word in command if word.startswith("--")]
        assert len(options) > 5
        assert [one for one in options if one not in helped[Path(command[0]).name]] == []
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] == "unless-stopped"
        assert any(volume.startswith(f"{name}:/state") for volume in service["volumes"])


@pytest.mark.slow  # five messages a round, some 10 s each
@pytest.mark.timeout(900)
def test_four_owners_on_loopback_with_tls_and_known_nodes(tmp_path: Path) -> None:
    users = make_users(60)
    rows = [
        {"client_id": users.user_ids[owner], "text": text}
        for owner, text in zip(users.owners, users.texts, strict=True)
    ]
    file = tmp_path / "users.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (
        "num-rounds=1 epsilon=7.58 num-users=60 num-candidates=32 expand-samples=0 "
        "output='survivors' accept-noise=true"
    )
    done = subprocess.run(
        [sys.executable, str(FOLDER / "loopback.py"), str(tmp_path / "all"),
         str(ROOT / "examples" / "own-data"), "--users", str(file), "--run-config", settings,
         "--timeout", "800"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "all" / "run"
    (line,) = releases(run)
    release = Release(
        noise_multiplier=line["noise_multiplier"], sampling=Sampling.from_dict(line["sampling"])
    )
    ledger = PrivacyLedger.read(run / "ledger.jsonl")
    assert ledger.epsilon_release == pytest.approx(
        release_epsilon({release: 1}, delta=ledger.delta), rel=1e-6
    )
    policy = NodePolicy(delta=ledger.delta)
    for number in range(1, 5):
        name = f"owner-{number}"
        account = NodeLedger(name, folder=tmp_path / "all" / name / "ledgers").account()
        assert [charge.trust for charge in account.charges] == ["nodes"]
        assert account.epsilon(policy) == pytest.approx(ledger.epsilon_release, rel=1e-9)
        (state,) = (tmp_path / "all" / name / "state").glob("*.json")
        assert json.loads(state.read_text()) == {"last": 1}
