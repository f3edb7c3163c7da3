"""Apps for SuperNodes that run what a key has signed, without Flower's hub.

    python signed_apps.py sign APP.fab KEY KEY_ID    # of flwr build; of ssh-keygen -t ed25519
    python signed_apps.py serve FOLDER [--port 8001]

`sign` writes APP.fab.json beside the app: the signature that `flwr app review` sends to the hub.
`serve` answers a SuperLink that was started with FLWR_SUPERGRID_API_URL=http://127.0.0.1:8001, on
the same machine, as the hub does: `flwr run @PUBLISHER/APP` then finds the apps of FOLDER. Whether
a signature holds, every SuperNode sees for itself.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import time
import tomllib
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key


def sign(fab: Path, key: Path, key_id: str) -> Path:
    """Sign an app, as bytes and of now.

    Args:
        fab: what `flwr build` wrote.
        key: an Ed25519 key of OpenSSH's, without a passphrase.
        key_id: how SuperNodes call the public half in their file of trusted entities.
    """
    private = load_ssh_private_key(key.read_bytes(), password=None)
    if not isinstance(private, Ed25519PrivateKey):
        raise SystemExit(f"{key} is no Ed25519 key: ssh-keygen -t ed25519 makes one")
    now = int(time.time())
    signature = private.sign(now.to_bytes(8, "big") + hashlib.sha256(fab.read_bytes()).digest())
    signed = {
        "public_key_id": key_id,
        "signature": base64.urlsafe_b64encode(signature).decode().rstrip("="),
        "signed_at": now,
    }
    file = fab.with_name(f"{fab.name}.json")
    file.write_text(json.dumps([signed]))
    return file


def app_of(fab: Path) -> tuple[str, str]:
    """The name of an app, with its publisher's, and its version."""
    with zipfile.ZipFile(fab) as bundle:
        document = tomllib.loads(bundle.read("pyproject.toml").decode())
    project, publisher = document["project"], document["tool"]["flwr"]["app"]["publisher"]
    return f"@{publisher}/{project['name']}", project["version"]


class Hub(SimpleHTTPRequestHandler):
    """What a SuperLink asks a hub: where an app is, and who has signed it; and the app."""

    def do_POST(self) -> None:
        """Answer `/hub/fetch-fab`."""
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for fab in sorted(Path(self.directory).glob("*.fab")):
            name, version = app_of(fab)
            if asked["app_id"] == name and asked.get("app_version") in (None, version):
                signatures = fab.with_name(f"{fab.name}.json")
                self._answer(
                    200,
                    fab_url=f"http://{self.headers['Host']}/{fab.name}",
                    verifications=json.loads(signatures.read_text()),
                )
                return
        self._answer(404, detail=f"there is no {asked['app_id']} in {self.directory}")

    def send_head(self) -> Any:
        """Hand out apps alone: the key may lie beside them."""
        if Path(self.translate_path(self.path)).suffix == ".fab":
            return super().send_head()
        return self.send_error(404)

    def _answer(self, status: int, **content: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


def main() -> None:
    """Sign, or serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    signing = commands.add_parser("sign")
    signing.add_argument("fab", type=Path)
    signing.add_argument("key", type=Path)
    signing.add_argument("key_id")
    serving = commands.add_parser("serve")
    serving.add_argument("folder", type=Path)
    serving.add_argument("--port", type=int, default=8001)
    given = parser.parse_args()
    if given.command == "sign":
        print(sign(given.fab, given.key, given.key_id))
        return
    hub = partial(Hub, directory=str(given.folder))
    ThreadingHTTPServer(("127.0.0.1", given.port), hub).serve_forever()


if __name__ == "__main__":
    main()
