"""Real simulations of a Flower app."""

from __future__ import annotations

import json
import socket
import sysconfig
from contextlib import suppress
from pathlib import Path

import numpy as np

from flower_privsyn.host.app import load_app, resolve_config
from flower_privsyn.host.launch import run_app

SCRIPTS = Path(sysconfig.get_path("scripts"))


ROUNDS = (1, 2)


def sums(run: Path) -> list[np.ndarray]:
    return [np.load(run / "rounds" / f"{number:04d}" / "release.npy") for number in ROUNDS]


def simulate(app: Path, run: Path, *, ray: bool = False, **settings: object) -> str | None:
    loaded = load_app(app)
    changes = [f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in settings.items()]
    return run_app(loaded, run, resolve_config(loaded, settings=changes), ray=ray).error


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ledger(run: Path) -> list[dict[str, object]]:
    with suppress(OSError):
        text = (run / "ledger.jsonl").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return []
