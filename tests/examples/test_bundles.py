"""Every app of the repository is built by `flwr build` and installed from the file."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from flwr.cli.app import app as flwr
from flwr.cli.install import install_from_fab
from typer.main import get_command

from flower_privsyn.host.app import load_app, resolve_config

# Flower's command line asks click for what click has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).parents[2]
APPS = [
    settings.parent
    for pattern in ("examples/**", "baselines/*", "benchmarks/*", "flower_privsyn/comparison/*")
    for settings in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
]


@pytest.mark.parametrize("app", APPS, ids=lambda app: "-".join(app.parts[-2:]))
def test_an_app_is_built_and_installed_whole(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Flower imports an app's modules, and two of our apps have one of the same name.
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    # Flower wants the name of the folder, too, without underscores: none of ours has any.
    built = CliRunner().invoke(get_command(flwr), ["build", "--app", str(app)])
    assert built.exit_code == 0, built.output
    assert "missing the following" not in built.output
    (bundle,) = tmp_path.glob("*.fab")
    assert bundle.stat().st_size < 10_000_000  # Flower's limit
    installed = install_from_fab(bundle, tmp_path / "home", skip_prompt=True)
    # All that the app needs at run time: its code, its settings and the text that it brings.
    for file in app.rglob("*"):
        if file.suffix in (".py", ".toml", ".json", ".jsonl") and "__pycache__" not in file.parts:
            there = installed / file.relative_to(app)
            assert there.is_file(), file
            if file.name != "pyproject.toml":
                assert there.read_bytes() == file.read_bytes(), file
    assert resolve_config(load_app(installed)) == resolve_config(load_app(app))
    components = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    own = {reference.split(".")[0] for reference in components["components"].values()}
    for name in set(sys.modules) - known:
        if name.split(".")[0] in own - {"flower_privsyn"}:
            del sys.modules[name]
    for reference in components["components"].values():
        module = reference.split(":")[0].replace(".", "/")
        assert any((place / f"{module}.py").is_file() for place in (installed, ROOT)), reference
