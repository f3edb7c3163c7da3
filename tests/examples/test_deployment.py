"""The deployment to copy: its keys, its files, and the whole of it by processes on loopback."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from flower_privsyn.client_apps.account import NodeAccount, NodeLedger
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.files import read_json_lines
from flower_privsyn.privacy import PrivacyLedger, Release, Sampling, release_epsilon
from tests.support.federation import make_users
from tests.support.run_files import lines, releases
from tests.support.simulation import SCRIPTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deployment"


def certificates(folder: Path, *names: str) -> None:
    command = ["sh", str(FOLDER / "certificates.sh"), str(folder), "127.0.0.1,superlink", *names]
    subprocess.run(command, check=True)


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
    for page in (*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")):
        text = page.read_text().replace("\\\n", " ")
        printed = re.findall(r"^ *\$ (flower-(?:superlink|supernode) --.*)$", text, re.MULTILINE)
        commands += [shlex.split(line) for line in printed]
    assert len(commands) > 6
    helped = {
        name: subprocess.run([str(SCRIPTS / name), "--help"], capture_output=True, text=True).stdout
        for name in ("flower-superlink", "flower-supernode")
    }
    for command in commands:
        options = [word for word in command if word.startswith("--")]
        assert len(options) > 2
        assert [one for one in options if one not in helped[Path(command[0]).name]] == []
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["restart"] == "unless-stopped"
        assert any(volume.startswith(f"{name}:/state") for volume in service["volumes"])


OWN_DATA = ROOT / "examples" / "own-data"
NO_MODELS = Path(__file__).parent / "rounds-app"
OWNERS = [f"owner-{number}" for number in range(1, 5)]
SETTINGS = (
    "epsilon=7.58 num-users=60 num-candidates=32 synthetic-samples=1 accept-noise=true "
    "variation=mask-fill generator=privsyn-lm"
)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Sixty users of short texts."""
    made = make_users(60)
    rows = [
        {"client_id": made.user_ids[owner], "text": text}
        for owner, text in zip(made.owners, made.texts, strict=True)
    ]
    file = tmp_path / "users.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def loopback_module() -> ModuleType:
    """The script that starts all of it, whose folder is no package."""
    spec = importlib.util.spec_from_file_location("loopback", FOLDER / "loopback.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def account_of(folder: Path, name: str) -> NodeAccount:
    """What an owner's node has answered."""
    return NodeLedger(name, folder=folder / name / "ledgers").account()


def test_users_are_dealt_whatever_their_texts_hold(tmp_path: Path) -> None:
    rows = [{"client_id": f"u{n}", "text": f"a{end}b"} for n, end in enumerate("\u2028\x85c")]
    users = tmp_path / "users.jsonl"
    users.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    federation = loopback_module().Federation(tmp_path / "all", ["one", "two"])
    federation.call = lambda *_: "key\n"
    federation.prepare(users)
    dealt = [[*read_json_lines(tmp_path / "all" / name / "users.jsonl")] for name in ("one", "two")]
    assert dealt == [[rows[0], rows[2]], [rows[1]]]


@pytest.mark.slow  # five messages a round, some 10 s each
@pytest.mark.timeout(1800)
def test_four_owners_on_loopback_with_tls_and_known_nodes(tmp_path: Path, users: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "loopback.py"), str(tmp_path / "all"), str(OWN_DATA),
         "--users", str(users), "--run-config", f"num-rounds=1 {SETTINGS}", "--timeout", "1500"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "all" / "run"
    (line,) = releases(run)
    release = Release(
        noise_multiplier=line["noise_multiplier"], sampling=Sampling.from_dict(line["sampling"])
    )
    ledger = PrivacyLedger.read(run / "ledger.jsonl")
    assert ledger.spent["epsilon_release"] == pytest.approx(
        release_epsilon({release: 1}, delta=ledger.delta), rel=1e-6
    )
    for name in OWNERS:
        account = account_of(tmp_path / "all", name)
        assert [charge.trust for charge in account.charges] == ["nodes"]
        policy = NodePolicy(delta=ledger.delta)
        assert account.epsilon(policy) == pytest.approx(ledger.spent["epsilon_release"], rel=1e-9)
        (state,) = (tmp_path / "all" / name / "state").glob("*.json")
        assert json.loads(state.read_text()) == {"last": 1}


@pytest.mark.slow  # two rounds, and a SuperLink that starts twice
@pytest.mark.timeout(3600)
def test_a_superlink_that_is_killed_in_a_round_and_started_again(
    tmp_path: Path, users: Path
) -> None:
    """Charged and left out; the run goes on as a new one of Flower's, with the same SuperNodes."""
    folder, run = tmp_path / "all", tmp_path / "all" / "run"
    federation = loopback_module().Federation(folder, OWNERS)
    federation.prepare(users)
    try:
        federation.start()
        federation.submit(NO_MODELS, "num-rounds=2")
        deadline = time.monotonic() + 1500
        # The question is out, every node has charged its account, and no sum is there yet.
        while not all(NodeLedger(name, folder=folder / name / "ledgers").path.exists()
                      for name in OWNERS):  # fmt: skip
            assert time.monotonic() < deadline, (folder / "superlink/log.txt").read_text()
            time.sleep(0.1)
        link = federation.processes.pop("superlink")
        for one in [*psutil.Process(link.pid).children(recursive=True), link]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        link.wait()
        assert [line["event"] for line in lines(run / "ledger.jsonl")][-1] == "started"
        assert releases(run) == []
        federation.start_superlink()
        assert all(federation.processes[name].poll() is None for name in OWNERS)
        federation.submit(NO_MODELS, "num-rounds=2 resume=true")
        status = federation.wait(timeout=1500)
        listed = federation.call("flwr", "list", "loopback", "--format", "json")
    finally:
        federation.stop()
    assert status == "finished", (folder / "superlink/log.txt").read_text()
    assert [(line["round"], line["interrupted"]) for line in releases(run)] == [
        (1, True),
        (2, False),
    ]
    assert not (run / "rounds" / "0001" / "release.npy").exists()
    assert (run / "synthetic.jsonl").read_text().count("\n") > 0
    ended = {int(one["run-id"]): one["status"] for one in json.loads(listed)["runs"]}
    ledger = PrivacyLedger.read(run / "ledger.jsonl")
    assert ledger.spent["epsilon_release"] <= 7.58 * (1 + 1e-6)
    for name in OWNERS:
        account = account_of(folder, name)
        first, second = account.charges
        assert (first.spec.round, second.spec.round) == (1, 2)
        # Flower fails the run that its SuperLink left, and starts another.
        assert ended[first.run].startswith("finished:failed")
        assert ended[second.run] == "finished:completed"
        policy = NodePolicy(delta=ledger.delta)
        assert account.epsilon(policy) == pytest.approx(ledger.spent["epsilon_release"], rel=1e-9)
        # What the round left has not been unmasked, and cannot be by another run.
        kept = {
            int(path.name.partition("-")[0]): json.loads(path.read_text())
            for path in (folder / name / "state").glob("*.json")
        }
        assert kept[second.run] == {"last": 2}
        assert kept[first.run]["state"]["step"] == "Masked"
