"""A method of a comparison runs in one process on its users, and a finished run is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flower_privsyn.files import append_json_lines, write_json
from flower_privsyn.runs import RunDirectory
from scripts.experiments.in_one_process import main, settings

SMALL = ["num-rounds=2", "max-samples=1", "model=privsyn-tiny", "min-users=2"]


def comparison(folder: Path) -> Path:
    """What a comparison of three users has written before its first cell."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "compare.json", {"fixed": {"delta": 1e-3}})
    people = [
        {"client_id": name, "text": f"{name} went to the harbour and counted every ship."}
        for name in ("Ada", "Ben", "Cleo")
    ]
    (folder / "data").mkdir()
    append_json_lines(folder / "data" / "private.jsonl", people)
    return folder


def test_it_asks_the_users_of_the_comparison(tmp_path: Path, capsys: Any) -> None:
    folder, run_dir = comparison(tmp_path / "comparison"), tmp_path / "run"
    words = [str(folder), "--config", "cpu", "--method", "dp-fedavg", "--epsilon", "8"]
    words += ["--run-dir", str(run_dir), "--set", *SMALL]
    assert main(words) == 0
    assert "dp-fedavg: finished after" in capsys.readouterr().out
    run = RunDirectory.open(run_dir)
    known = run.config
    assert (known["num-users"], known["delta"], known["epsilon"]) == (3, 1e-3, 8.0)
    assert run.finished_rounds() == [0, 1, 2]
    assert run.ledger_lines()[-1]["epsilon_release"] <= 8
    assert main(words) == 2
    assert "finished" in capsys.readouterr().err


def test_the_settings_are_those_of_the_cell(tmp_path: Path) -> None:
    folder = comparison(tmp_path)
    found = settings(
        folder, config="gemma-gpu", method="popri", epsilon=2.0, seed=5, given=["num-rounds=3"]
    )
    assert (found["strategy"], found["generator"]) == ("popri", "gemma-3-270m")
    assert (found["num-rounds"], found["epsilon"], found["seed"]) == (3, 2.0, 5)
    assert (found["num-users"], found["delta"]) == (3, 1e-3)


def test_a_folder_without_a_comparison_is_a_sentence(tmp_path: Path, capsys: Any) -> None:
    words = [str(tmp_path), "--config", "cpu", "--method", "dp-fedavg"]
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 2
    assert "no comparison" in capsys.readouterr().err
