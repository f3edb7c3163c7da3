"""`privsyn new`: an example of the package in a folder of one's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from flower_privsyn.catalogue import entries
from flower_privsyn.cli import main
from flower_privsyn.cli.new import EXAMPLES, NEXT_STEPS, source_of
from flower_privsyn.host.app import load_app, resolve_config, strategy_of_app
from flower_privsyn.run.method import need
from flower_privsyn.run_config import unfolded


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("example", NEXT_STEPS)
def test_an_example_is_written_whole_and_can_be_run(
    example: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", example, "my apps/first/"]) == 0
    assert files(Path("my apps/first")) == files(source_of(example))
    shown = capsys.readouterr().out
    assert "my apps/first/README.md" in shown
    commands = [shlex.split(line) for line in shown.splitlines() if line.startswith("    ")]
    assert len(commands) == len(NEXT_STEPS[example])
    for program, command, folder, *_ in commands:
        if program != "privsyn":
            assert all(Path(word).exists() for word in (command, folder) if "/" in word)
            continue
        assert command in ("check", "run")
        app = load_app(folder)
        assert resolve_config(app) == unfolded(app.defaults)
        assert app.path.is_relative_to(tmp_path)


@pytest.mark.parametrize("method", [*entries(), "pre-text", "pe-sft"])
def test_a_method_is_own_data_with_its_strategy(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", method, str(tmp_path / "mine")]) == 0
    assert "--set data=FILE" in capsys.readouterr().out
    app = load_app(tmp_path / "mine")
    assert len(app.defaults) <= 20
    settings, strategy = need(strategy_of_app(app, resolve_config(app)))
    named = {"pre-text": "private-evolution", "pe-sft": "popri"}.get(method, method)
    assert strategy is entries()[named].strategy
    assert settings.epsilon == 2.0
    assert f"privsyn methods {named}" in (app.path / "pyproject.toml").read_text()


def test_every_app_among_the_examples_can_be_written() -> None:
    apps = {path.relative_to(EXAMPLES).parts[0] for path in EXAMPLES.rglob("pyproject.toml")}
    assert apps | {"deployment", "every-method"} == set(NEXT_STEPS)


@pytest.mark.parametrize("where", ["full", "file", "file/below"])
def test_what_cannot_be_written_is_left_alone(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    assert main(["new", "quickstart", where]) == 2
    assert where in capsys.readouterr().err
    assert files(tmp_path) == {"full/mine": b"", "file": b""}


def test_what_is_written_may_be_changed_where_the_package_may_not(tmp_path: Path) -> None:
    assert main(["new", "own-data", str(tmp_path)]) == 0  # an empty folder is as good as none
    for path in [tmp_path, *tmp_path.rglob("*")]:
        assert path.stat().st_mode & 0o200, path
