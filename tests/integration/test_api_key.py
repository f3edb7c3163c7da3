"""A real run with a generation server that answers 401 and quotes the key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from tests.support.federation_app import write_app
from tests.support.generation_server import Server

KEY = "sk-proj-Q7v2pLr9wXe4TzN8"


def holding(folder: Path, key: bytes) -> list[Path]:
    """The files below a folder that hold the key, in clear."""
    return [path for path in folder.rglob("*") if path.is_file() and key in _bytes(path)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone, or of another user
        return b""


def test_no_file_and_no_message_holds_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server()
    found: list[Path] = []
    shown: list[str] = []

    def refuse(path: str, body: dict[str, Any], number: int) -> tuple[int, dict[str, Any]] | None:
        if path == "/v1/models":  # asked before the run, too
            return None
        found.extend(holding(tmp_path, KEY.encode()))  # while the run is alive
        shown.extend(
            part
            for process in Path("/proc").glob("[0-9]*/cmdline")
            for part in _read(process).split("\0")
            if KEY in part
        )
        return 401, {"error": {"message": f"Incorrect API key provided: {KEY}. {KEY[:11]}***"}}

    server.misbehave = refuse
    try:
        done = subprocess.run(
            [
                sys.executable, "-m", "flower_privsyn.cli",
                "run", str(write_app(tmp_path / "app")),
                "--run-dir", str(tmp_path / "run"), "--set", "num-nodes=1",
                "--set", "synthetic-samples=3",
                "--set", f"generator={server.url}",
            ],
            env={**os.environ, "PRIVSYN_API_KEY": KEY, "HOME": str(tmp_path / "home"),
                 "TMPDIR": str(tmp_path)},
            cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        server.close()
    assert server.requests, done.stderr
    assert {headers["authorization"] for _, _, headers in server.requests} == {f"Bearer {KEY}"}
    assert done.returncode != 0
    assert "with status 401: Incorrect API key provided: [api key]. [api key]***" in done.stderr
    assert found == []
    assert shown == []
    assert holding(tmp_path, KEY.encode()) == []
    assert KEY[:11] not in done.stdout + done.stderr
    run = tmp_path / "run"
    main(["inspect", str(run)])
    told = capsys.readouterr()
    assert "401" in told.out
    assert KEY[:11] not in told.out + told.err


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
