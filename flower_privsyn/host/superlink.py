"""A SuperLink that answers its owner alone, for the simulations of `privsyn run`.

Flower's stock SuperLink knows no accounts: whoever reaches its port hands in an app, and the app's
code runs as the user who started the SuperLink. Loopback keeps other machines out, not other users
of this one. This module starts the same SuperLink with four doors closed:

* Control API: an authentication plug-in asks for a random token. Flower's command finds the token
  where it keeps those of accounts, in `credentials.yaml` of `FLWR_HOME`.
* Runtime API: the SuperExec, which starts the processes of a run, signs its requests with a random
  secret (Flower's own `--superexec-auth-secret-file`).
* Task tokens: Flower's SuperExec puts them on the command line, where every user of the machine can
  read them; here they are handed over in files.
* Everything else (Fleet API, documentation pages) has no business in a simulation and is refused.

This is the only file that knows how Flower can be made to do that; `tests/host/test_superlink.py`
fails where a later Flower has other hooks. It is run as two small programs:

    python -m flower_privsyn.host.superlink superlink KEYS [options of flower-superlink]
    python -m flower_privsyn.host.superlink superexec KEYS [options of flower-superexec]
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

TOKEN_FILE = "token"
"""In the folder of keys: what a client of the Control API must show."""

SUPEREXEC_FILE = "superexec"
"""In the folder of keys: what the SuperExec signs its requests with."""

_SERVED = ("/health", "/v1/control/", "/v1/runtime/")
_MODULE = "flower_privsyn.host.superlink"


# -------------------------------------------------------------------- what the owner holds


def write_secret(path: Path, value: str) -> None:
    """Write a file that its owner alone can read from the moment it exists."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(value)


def write_keys(folder: Path) -> None:
    """Write a new token and a new SuperExec secret, 256 random bits each, into a folder.

    Args:
        folder: Made with mode 0700 if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (TOKEN_FILE, SUPEREXEC_FILE):
        write_secret(folder / name, secrets.token_hex(32))


def write_credentials(home: Path, address: str, keys: Path) -> None:
    """Give Flower's command the token for a SuperLink, as if it had logged in there.

    Args:
        home: The `FLWR_HOME` of the command.
        address: `host:port` as in its configuration.
        keys: The folder that `write_keys` has filled.
    """
    token = (keys / TOKEN_FILE).read_text(encoding="utf-8")
    account = {
        # The command sends a token only to servers it believes to be of this kind.
        "authn-type": "oidc",
        "oidc-access-token": token,
        "oidc-refresh-token": "none",
    }
    values = {
        f"flower.account-auth.{address}.{name}": base64.b64encode(value.encode()).decode()
        for name, value in account.items()
    }
    write_secret(home / "credentials.yaml", json.dumps(values))  # JSON is YAML


def superlink_command(keys: Path, *options: str) -> list[str]:
    """The command that starts the SuperLink; `options` are those of `flower-superlink`."""
    return [sys.executable, "-m", _MODULE, "superlink", str(keys), *options]


# -------------------------------------------------------------------- the SuperLink


class _OwnerRoutes:
    """ASGI middleware: what no process of a simulation asks for is refused."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or (
            scope["type"] == "http" and scope["path"].startswith(_SERVED)
        ):
            await self.app(scope, receive, send)
            return
        from starlette.responses import PlainTextResponse

        answer = PlainTextResponse("This SuperLink serves one simulation.", status_code=403)
        await answer(scope, receive, send)


def guard_superlink(token: str) -> None:
    """Make every SuperLink that this process creates from now on ask for a token.

    Args:
        token: What a client of the Control API must send as its bearer token.

    Raises:
        RuntimeError: Flower no longer has the hooks this relies on.
    """
    from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.supercore.auth.typing import AccountInfo
    from flwr.superlink import extensions
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from starlette.middleware import Middleware

    # By name: the package shows a function of the same name in the module's place.
    flower_superlink = import_module("flwr.superlink.cli.flower_superlink")

    class TokenPlugin(NoOpControlAuthnPlugin):
        """The stock account, for those who show the token; there is no way to get one."""

        def validate_tokens_in_metadata(self, metadata: Any) -> tuple[bool, AccountInfo | None]:
            shown = [value for key, value in metadata if key == ACCESS_TOKEN_KEY]
            known = len(shown) == 1 and secrets.compare_digest(_bytes(shown[0]), token.encode())
            return known, _account() if known else None

        def refresh_tokens(self, metadata: Any) -> tuple[None, None]:
            del metadata
            return None, None

    def _account() -> AccountInfo:
        return AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    for owner, name in (
        (flower_superlink, "load_control_authn_plugin"),
        (extensions, "get_middleware"),
    ):
        if not callable(getattr(owner, name, None)):
            raise RuntimeError(f"this Flower has no {owner.__name__}.{name}")
    flower_superlink.load_control_authn_plugin = TokenPlugin  # type: ignore[attr-defined]
    extensions.get_middleware = lambda: (Middleware(_OwnerRoutes),)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _superlink(keys: Path, options: Sequence[str]) -> None:
    from flwr.superlink.cli import flower_superlink

    guard_superlink((keys / TOKEN_FILE).read_text(encoding="utf-8"))
    host, port = (options[options.index(name) + 1] for name in ("--host", "--port"))
    secret = ("--superexec-auth-secret-file", str(keys / SUPEREXEC_FILE))
    # Flower asks a SuperExec for its secret only where the SuperLink has not started it itself.
    subprocess.Popen(
        [
            *(sys.executable, "-m", _MODULE, "superexec", str(keys), "--insecure", *secret),
            *("--runtime-api-address", f"{host}:{port}", "--parent-pid", str(os.getpid())),
        ],
        stdin=subprocess.DEVNULL,
    )
    sys.argv = ["flower-superlink", *options, "--isolation", "process", *secret]
    flower_superlink()


# -------------------------------------------------------------------- the SuperExec


def guard_task_tokens(folder: Path) -> None:
    """Make this process hand tokens of tasks over in files of mode 0600, not on command lines.

    Args:
        folder: Where the files are written.
    """
    from flwr.supercore.superexec.executor import subprocess_executor

    start = subprocess.Popen

    def popen(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        arguments = list(arguments)
        place = arguments.index("--token")  # an error here ends the run, and not in silence
        file = folder / f"task-{secrets.token_hex(8)}"
        write_secret(file, arguments[place + 1])
        arguments[place : place + 2] = ["--token-file", str(file)]
        return start(arguments, **options)

    class Processes:
        """The module `subprocess` as the executor uses it."""

        DEVNULL = subprocess.DEVNULL
        Popen = staticmethod(popen)

    vars(subprocess_executor)["subprocess"] = Processes


def _superexec(keys: Path, options: Sequence[str]) -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec

    guard_task_tokens(keys)
    sys.argv = ["flower-superexec", *options]
    flower_superexec()


def _main(arguments: Sequence[str]) -> NoReturn:
    programs = {"superlink": _superlink, "superexec": _superexec}
    if len(arguments) < 2 or arguments[0] not in programs:
        sys.stderr.write(f"usage: python -m {_MODULE} superlink|superexec KEYS [OPTIONS]\n")
        sys.exit(2)
    with contextlib.suppress(KeyboardInterrupt):
        programs[arguments[0]](Path(arguments[1]), arguments[2:])
    sys.exit(0)


if __name__ == "__main__":
    _main(sys.argv[1:])
