"""A Flower app in a folder of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.host.app import App, load_app
from tests.support.flower_app import write_app


@pytest.fixture
def app(tmp_path: Path) -> App:
    folder = write_app(tmp_path / "app")
    (folder / "conf").mkdir()
    (folder / "conf" / "small.toml").write_text("num-nodes = 3\nepsilon = 2\n")
    (folder / "conf" / "wrong.toml").write_text("num-node = 3\n")
    (folder / "conf" / "broken.toml").write_text("num-nodes = \n")
    (folder / "conf" / "cpu").mkdir()
    (folder / "conf" / "cpu" / "small.toml").touch()
    return load_app(folder)
