"""What an app does besides its run: how the command then ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.run import RunDirectory
from tests.support.federation_app import write_app


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_app(tmp_path_factory.mktemp("app") / "six-users")


def ran(app: Path, run: Path, does: str) -> int:
    short = ["num-nodes=1", "num-rounds=1", f"app-does={does}", "node-timeout=60"]
    settings = [word for one in short for word in ("--set", one)]
    return main(["run", str(app), "--run-dir", str(run), *settings])


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("two strategies, then fails", "no credentials for the bucket"),
        ("thread, long work, then exits", "sys.exit"),
        ("is killed", "killed"),
    ],
)
def test_an_app_that_fails_after_its_run(
    app: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    does: str,
    why: str,
) -> None:
    run = tmp_path / "run"
    assert ran(app, run, does) == 1
    said = capsys.readouterr()
    # The result is there and shown, whatever came after it.
    assert RunDirectory.open(run).status == "finished"
    assert f"Synthetic texts: {run / 'synthetic.jsonl'}" in said.out
    failed, log = said.err.splitlines()[-2:]
    assert why in failed
    assert str(tmp_path / "run.owner" / "flower.log") in log
    assert (tmp_path / "worked").exists() == ("long work" in does)
    assert (tmp_path / "run-2").exists() == ("two" in does)


@pytest.mark.parametrize("does", ["fails before", "nothing"])
def test_an_app_whose_run_has_no_result(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], does: str
) -> None:
    run = tmp_path / "run"
    assert ran(app, run, does) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert ("no credentials for the bucket" in said.err) == (does == "fails before")
    assert str(tmp_path / "run.owner" / "flower.log") in said.err.splitlines()[-1]
    assert not run.exists()
