"""A run as tables: of every method, finished, failed, interrupted and at work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn import open_run
from flower_privsyn.errors import LedgerError, RunDirectoryError
from flower_privsyn.run import RunDirectory
from tests.support import golden_runs
from tests.support.ledgers import write_chain
from tests.support.run_files import add_line

PAGE = (Path(__file__).parents[2] / "docs" / "run_directory.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the run of each method is, made when it is first asked for."""
    return {"": tmp_path_factory.mktemp("golden")}


def folder_of(name: str, folders: dict[str, Path]) -> Path:
    if name not in folders:
        parent = folders[""] / re.sub(r"\W", "-", name)
        parent.mkdir()
        golden_runs.run(name, parent)
        (folders[name],) = {file.parent for file in parent.rglob("ledger.jsonl")}
    return folders[name]


@pytest.mark.parametrize("name", ["private-evolution", "fred"])
def test_tables_hold_what_the_files_hold(name: str, folders: dict[str, Path]) -> None:
    path = folder_of(name, folders)
    run = open_run(path)
    assert run.status == "finished"
    assert run.strategy
    assert run.settings == RunDirectory.open(path).config
    assert run.versions["flwr"]
    metrics = (path / "metrics.jsonl").read_text("utf-8").splitlines()
    assert [line["round"] for line in run.rounds] == [json.loads(line)["round"] for line in metrics]
    ledger = map(json.loads, (path / "ledger.jsonl").read_text("utf-8").splitlines())
    assert run.charged == [line for line in ledger if line["event"] == "release"]
    synthetic = path / "synthetic.jsonl"
    lines = synthetic.read_text("utf-8").splitlines() if synthetic.exists() else []
    assert len(run.texts) == len(lines)
    if lines:
        assert run.texts["text"].tolist() == [json.loads(line)["text"] for line in lines]
    assert "embedding" not in run.candidates


def begun(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", config={"num-rounds": 3}, strategy="POPri")
    write_chain(
        run.ledger_file,
        {"event": "opened", "delta": 1e-6, "epsilon_budget": 2.0, "accountant": "pld"},
        {"event": "started", "round": 1},
    )
    return run


def test_a_run_at_work_a_killed_one_and_a_failed_one(tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.log_metrics({"round": 1, "released": True})
    opened = open_run(run.path)
    assert opened.status == "running"
    assert [(line["round"], line["released"]) for line in opened.rounds] == [(1, True)]
    assert opened.rounds_open == [1]
    for empty in (opened.texts, opened.candidates):
        assert len(empty) == 0
    assert opened.figures == {}
    run.unlock()
    (run.path / ".lock").unlink()  # of this process, which is alive
    assert open_run(run.path).status == "interrupted"
    run.mark_failed(RunDirectoryError("The disk is full."))
    opened = open_run(run.path)
    assert (opened.status, opened.error) == ("failed", "The disk is full.")


def test_what_is_no_run_and_what_was_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="There is no run directory"):
        open_run(tmp_path / "nowhere")
    run = begun(tmp_path)
    run.ledger_digest = lambda: "0" * 64
    add_line(run, {"round": 1})
    with pytest.raises(LedgerError):
        open_run(run.path)


def test_the_example_of_the_page_runs_without_a_model_library(folders: dict[str, Path]) -> None:
    code, _own_tracker = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = folder_of(next(name for name in golden_runs.RUNS if "evolution" in name), folders)
    code = code.replace("RUN_DIR", str(path))
    heavy = "{'torch', 'transformers', 'sentence_transformers'}"
    code += f"\nimport sys\nassert not {heavy} & set(sys.modules)\n"
    ran: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("finished PrivateEvolution")
