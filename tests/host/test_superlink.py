"""The SuperLink of a simulation answers its owner, and neither another user nor anybody else."""

from __future__ import annotations

import base64
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from flower_privsyn.host import superlink
from flower_privsyn.host.flower import Flower
from flower_privsyn.host.processes import descendants
from tests.support.flower_app import write_app
from tests.support.sockets import addresses

flower_superlink = import_module("flwr.superlink.cli.flower_superlink")


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder that every user of the machine can enter, as /home/somebody/project may be."""
    folder = Path(tempfile.mkdtemp(prefix="privsyn-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def flower(shared: Path) -> Iterator[Flower]:
    """A SuperLink as `privsyn run` starts it, in a run directory that others can enter."""
    run = shared / "run"
    run.mkdir()
    started = Flower(run, {"working-directory": str(shared)})
    started.start()
    yield started
    started.close()


def port_of(flower: Flower) -> int:
    address = (flower.home / "config.toml").read_text().partition('address = "')[2]
    return int(address.partition(":")[2].partition('"')[0])


def stranger_home(flower: Flower, folder: Path, token: str | None = None) -> Path:
    """Flower's folder of somebody who knows the address and has no token, or a guessed one."""
    folder.mkdir()
    folder.chmod(0o777)
    shutil.copy(flower.home / "config.toml", folder)
    (folder / "config.toml").chmod(0o644)
    if token is not None:
        keys = folder / "keys"
        keys.mkdir()
        superlink.write_secret(keys / superlink.TOKEN_FILE, token)
        superlink.write_credentials(folder, f"127.0.0.1:{port_of(flower)}", keys)
    return folder


AS_SOMEBODY = """
import json, os, pwd, sys
from flwr.cli.app import app

user, wanted, arguments = json.loads(sys.argv[1])

def ask():
    try:
        app(arguments)
    except SystemExit:
        pass

if user:
    # Once as root: the standard library may lie where only root can read it, as in /root/.pyenv.
    ask()
    os.setgroups([])
    os.setgid(pwd.getpwnam(user).pw_gid)
    os.setuid(pwd.getpwnam(user).pw_uid)
readable = []
for path in wanted:
    try:
        os.close(os.open(path, os.O_RDONLY))
        readable.append(path)
    except PermissionError:
        pass
print("\\n===", os.getuid(), json.dumps(readable), flush=True)
ask()
"""


def flwr(
    home: Path, *arguments: str, user: str | None = None, wanted: Sequence[Path] = ()
) -> tuple[bool, str, list[str]]:
    """Run Flower's command, as another user too.

    Returns:
        Whether the SuperLink did what was asked, what was said, and which of the files `wanted`
        that user could open.
    """
    order = json.dumps([user, list(map(str, wanted)), [*arguments, "--format", "json"]])
    done = subprocess.run(
        [sys.executable, "-c", AS_SOMEBODY, order],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=home,
        env={**os.environ, "FLWR_HOME": str(home), "HOME": str(home),
             "FLWR_DISABLE_UPDATE_CHECK": "1"},
        check=False,
    )  # fmt: skip
    first, _, output = done.stdout.partition("=== ")[2].partition("\n")
    number, _, readable = first.partition(" ")
    assert int(number) == (os.getuid() if user is None else pwd.getpwnam(user).pw_uid)
    answer = json.loads(output[output.index("{") :])
    said = str(answer.get("error-message", ""))
    return bool(answer["success"]), said, json.loads(readable)


def test_the_owner_is_answered(flower: Flower) -> None:
    assert flower._flwr("list", "privsyn")["success"] is True


@pytest.mark.parametrize("token", [None, "0" * 64])
def test_a_client_without_the_token_is_refused(
    flower: Flower, shared: Path, token: str | None
) -> None:
    home = stranger_home(flower, shared / f"client-{token is None}", token)
    done, words, _ = flwr(home, "run", str(write_app(home / "app")), "privsyn")
    assert not done
    assert "authentic" in words.lower(), words
    assert flower._flwr("list", "privsyn")["runs"] == []


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can become another user"
)
def test_another_user_of_the_machine_is_refused(flower: Flower, shared: Path) -> None:
    home = stranger_home(flower, shared / "nobody")
    app = write_app(home / "app")
    # Nor can the token be picked up where the owner keeps it, nor what the run has stored.
    secret = [
        flower.keys / superlink.TOKEN_FILE, flower.keys / superlink.SUPEREXEC_FILE,
        flower.keys / "ray", flower.home / "credentials.yaml", flower.home / "state.db", flower.log,
    ]  # fmt: skip
    assert all(path.is_file() for path in secret)
    public = home / "config.toml"
    done, words, readable = flwr(
        home, "run", str(app), "privsyn", user="nobody", wanted=[*secret, public]
    )
    assert not done
    assert "authentic" in words.lower(), words
    assert readable == [str(public)]
    assert flower._flwr("list", "privsyn")["runs"] == []


def test_no_route_answers_without_credentials(flower: Flower) -> None:
    """All that Flower serves, asked by hand: also what its own command would never send."""
    from flwr.supercore.routers.runtime import create_runtime_router, responses_router
    from flwr.superlink.routers.control import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    routers = (control, fleet, create_runtime_router("SuperLink"), responses_router)
    paths = {
        path for router in routers for path in (context.path for context in _routes(router)) if path
    }
    assert {"/v1/control/start-run", "/v1/runtime/acquire-task"} <= paths
    assert len(paths) > 40
    answered = {
        path: status for path in sorted(paths) if (status := _post(flower, path)) not in {401, 403}
    }
    # Where there are no accounts to log in to, these give out no token.
    assert answered.pop("/v1/control/get-login-details") == 200
    assert set(answered) <= {f"/v1/control/{name}-auth-tokens" for name in ("get", "refresh")}
    assert all(status >= 400 for status in answered.values())
    assert _post(flower, "/openapi.json") == 403


def _routes(router: object) -> Iterator[object]:
    from fastapi.routing import iter_route_contexts

    yield from iter_route_contexts(router.routes)  # type: ignore[attr-defined]


def _post(flower: Flower, path: str) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port_of(flower)}{path}",
        data=b"",
        headers={"Content-Type": "application/protobuf", "Accept": "application/protobuf"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_nothing_listens_beyond_this_machine(flower: Flower) -> None:
    assert flower.guard is not None
    assert addresses([info.pid for info in descendants(flower.guard.pid)]) == {"127.0.0.1"}


def test_what_the_owner_holds_is_the_owners(flower: Flower) -> None:
    for path in (flower.home.parent, flower.home, flower.keys, flower.temporary):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    for path in (*flower.keys.iterdir(), flower.home / "credentials.yaml", flower.log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    secrets = {(flower.keys / name).read_text() for name in ("token", "superexec", "ray")}
    assert len(secrets) == 3
    assert all(len(value) == 64 for value in secrets)
    # Other users can read command lines.
    assert flower.guard is not None
    lines = [" ".join(info.cmdline()) for info in descendants(flower.guard.pid)]
    assert any("flower_privsyn.host.superlink superexec" in line for line in lines)
    assert not [line for line in lines for value in secrets if value in line]


def test_a_token_replaces_one_and_never_follows_a_link(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("kept")
    (tmp_path / "token").symlink_to(target)
    superlink.write_secret(tmp_path / "token", "new")
    assert target.read_text() == "kept"
    assert (tmp_path / "token").read_text() == "new"
    assert not (tmp_path / "token").is_symlink()


# -------------------------------------------------------------------- Flower's hooks


def test_the_hooks_are_those_of_the_installed_flower(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `flower_privsyn.host.superlink` replaces is still what Flower calls."""
    from flwr.cli import constant
    from flwr.common.constant import ACCESS_TOKEN_KEY
    from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
    from flwr.superlink import extensions, main

    for owner, name in (
        (flower_superlink, "load_control_authn_plugin"),
        (extensions, "get_middleware"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    superlink.guard_superlink("right")
    monkeypatch.setattr(
        sys, "argv", ["flower-superlink", "--insecure", "--simulation", "--isolation", "process"]
    )
    config = flower_superlink._parse_superlink_lifespan_config()
    check = config.authn_plugin.validate_tokens_in_metadata
    assert check([(ACCESS_TOKEN_KEY, "right")])[0]
    for shown in ([], [(ACCESS_TOKEN_KEY, "wrong")], [(ACCESS_TOKEN_KEY, "right")] * 2):
        assert check(shown) == (False, None)
    assert superlink._OwnerRoutes in [each.cls for each in main._get_middleware()]

    keys = tmp_path / "keys"
    superlink.write_keys(keys)
    superlink.write_credentials(tmp_path, "127.0.0.1:1", keys)
    store = FileCredentialStore(tmp_path / "credentials.yaml")
    token = (keys / superlink.TOKEN_FILE).read_bytes()
    assert store.get(constant.ACCESS_TOKEN_STORE_KEY % "127.0.0.1:1") == token
    assert store.get(constant.AUTHN_TYPE_STORE_KEY % "127.0.0.1:1") == b"oidc"
    assert store.get(constant.REFRESH_TOKEN_STORE_KEY % "127.0.0.1:1") is not None
    assert base64.b64encode(token) in (tmp_path / "credentials.yaml").read_bytes()


def test_task_tokens_are_on_no_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda arguments, **_: commands.append(arguments))
    superlink.guard_task_tokens(tmp_path)
    spec = ExecutionSpec(
        task_type=TaskType.SIMULATION, runtime_api_address="127.0.0.1:1", token="ab" * 32,
        insecure=True, root_certificates_path=None, runtime_dependency_install=False,
        parent_pid=None, suppress_output=False, task_id=1,
    )  # fmt: skip
    subprocess_executor.SubprocessExecutor().launch(spec)
    (command,) = commands
    assert command[0] == "flwr-simulation"
    assert "ab" * 32 not in command
    file = Path(command[command.index("--token-file") + 1])
    assert file.read_text() == "ab" * 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
