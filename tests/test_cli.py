"""The command line: what it prints, what it refuses, and with which exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn import cli
from flower_privsyn.host import simulation
from flower_privsyn.runs import RunDirectory
from tests.flower_app import write_app
from tests.ledgers import write_chain


def _release(number: int, **values: Any) -> dict[str, Any]:
    return {
        "event": "release",
        "round": number,
        "num_users": 300,
        "delta": 3e-6,
        "epsilon_release": 1.25 * number,
        "epsilon_known_cohorts": 2.5 * number,
        **values,
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create(tmp_path / "run", config={"epsilon": 7.58}, strategy="POPri")
    lines = [
        {"event": "opened", "delta": 3e-6, "epsilon_budget": 7.58},
        {"event": "started", "round": 1},
        _release(1),
        {"event": "started", "round": 2},
        _release(2),
    ]
    write_chain(run.ledger_file, *lines, torn='{"torn')
    run.write_synthetic(
        [{"text": f"[b]text {n}[/b]", "round": 2, "parent": None, "source": "x"} for n in range(5)]
    )
    for number in (0, 1, 2):
        run.finish_round(number)
    run.mark_running()
    run.mark_finished()
    run.unlock()
    return run


def test_inspect_reads_everything_from_the_files(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(run.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["strategy"] == "POPri"
    assert facts["status"] == "finished"
    assert facts["error"] is None
    assert facts["rounds_finished"] == [1, 2]
    assert facts["releases"] == 2
    assert facts["users"] == 300
    assert (facts["epsilon_release"], facts["epsilon_known_cohorts"]) == (2.5, 5.0)
    assert (facts["delta"], facts["epsilon_budget"]) == (3e-6, 7.58)
    assert facts["synthetic_texts"] == 5
    assert facts["samples"] == ["[b]text 0[/b]", "[b]text 1[/b]", "[b]text 2[/b]"]
    assert set(facts["files"]) == {
        *("config.json", "ledger.jsonl", "state.json", "synthetic.jsonl", "synthetic.parquet"),
        *(f"rounds/000{number}/state.json" for number in (0, 1, 2)),
    }


def test_inspect_for_people(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "epsilon_release       = 2.5" in shown
    assert "epsilon_known_cohorts = 5" in shown
    assert "[b]text 0[/b]" in shown


def test_inspect_tells_an_interrupted_run_from_a_running_one(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    run.lock()
    run.mark_running()
    assert cli.inspect_run(run.path)["status"] == "running"
    run.unlock()
    # As after a kill -9: the lock file names a process that is not there any more.
    (run.path / ".lock").write_text('{"pid": 1073741824, "started": "1"}\n')
    assert cli.inspect_run(run.path)["status"] == "interrupted"
    assert cli.main(["inspect", str(run.path)]) == 0
    assert "privsyn resume" in capsys.readouterr().out


def test_a_run_without_enough_noise_is_called_not_private(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    line = _release(3, epsilon_release=None, epsilon_known_cohorts=None)
    write_chain(run.ledger_file, {"event": "opened"}, line)
    assert cli.main(["inspect", str(run.path)]) == 0
    assert "Not private: 1 releases" in capsys.readouterr().out


def test_inspect_before_anything_was_released(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunDirectory.create(tmp_path / "run", config={}).unlock()
    assert cli.main(["inspect", str(tmp_path / "run")]) == 0
    assert "nothing released" in capsys.readouterr().out


def test_the_end_of_a_run_names_the_epsilons_and_the_files(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._report(simulation.Outcome(path=run.path, error=None)) == 0
    shown = capsys.readouterr().out
    assert f"Run directory: {run.path}" in shown
    assert "epsilon_release       = 2.5 (" in shown
    assert "epsilon_known_cohorts = 5 (" in shown
    assert "delta = 3e-06, 2 releases" in shown
    assert f"Synthetic texts: {run.path / 'synthetic.jsonl'} (5)" in shown
    assert f"Synthetic texts: {run.path / 'synthetic.parquet'} (5)" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "nowhere"], "There is no app folder nowhere."),
        (["run", "app", "--set", "epsilonn=1"], "did you mean 'epsilon'?"),
        (["run", "app", "--config", "small"], "asking-app has no configuration 'small'"),
        (["run", "app", "--run-dir", "app/runs/1"], "lies inside the app"),
        (["run", "app", "--run-dir", "run"], "already holds a run; resume it with"),
        (["run", "app", "--run-dir", "file"], "cannot be written"),
        (["run", "app", "--set", "num-nodes=0"], "num-nodes is 0; it must be a whole number"),
        (["resume", "run"], "has finished; there is nothing to resume."),
        (["resume", "nowhere"], "There is no run directory"),
        (["inspect", "app"], "is not a run directory: it holds no config.json."),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str],
    sentence: str,
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_app(tmp_path / "app")
    (tmp_path / "file").touch()
    assert cli.main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("privsyn: ")
    assert sentence in last


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "missing.jsonl"),
        ('{"client_id": "a", "text": "x"}\n{"client_id": "b", "text": \n', "line 2"),
        ('{"client_id": "a"}\n', "text"),
    ],
)
def test_bad_data_is_named_before_flower_starts(
    content: str | None,
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "users.jsonl").write_text(content)
    data = "missing.jsonl" if content is None else "users.jsonl"
    app = Path(__file__).parents[1] / "examples" / "own-data"
    assert cli.main(["run", str(app), "--run-dir", "r", "--set", f"data={data}"]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_an_app_without_a_run_directory_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._report(simulation.Outcome(path=tmp_path, error=None)) == 0
    assert "finished" in capsys.readouterr().out


def test_contradicting_settings_are_named_before_flower_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = Path(__file__).parents[1] / "examples" / "quickstart"
    run = str(tmp_path / "r")
    settings = ["--set", "epsilon=8.0", "--set", "noise-multiplier=2.0"]
    assert cli.main(["run", str(app), "--run-dir", run, *settings]) == 2
    error = capsys.readouterr().err
    assert "--set epsilon=-1" in error
    assert "Running" not in error
    assert not (tmp_path / "r").exists()


def test_own_data_without_data(capsys: pytest.CaptureFixture[str]) -> None:
    app = Path(__file__).parents[1] / "examples" / "own-data"
    assert cli.main(["run", str(app)]) == 2
    assert "data is empty" in capsys.readouterr().err


def test_an_unexpected_error_is_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(cli, "inspect_run", fail)
    monkeypatch.delenv("PRIVSYN_TRACEBACK", raising=False)
    assert cli.main(["inspect", "x"]) == 1
    assert "unexpected ZeroDivisionError: by zero" in capsys.readouterr().err
    monkeypatch.setenv("PRIVSYN_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["inspect", "x"])


def test_where_a_run_goes_when_nobody_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path / "app")
    paths: list[Path] = []

    def record(_app: object, path: Path, _values: object, **_: object) -> simulation.Outcome:
        paths.append(path)
        return simulation.Outcome(path=path, error="stopped here")

    monkeypatch.setattr(simulation, "run_app", record)
    monkeypatch.setenv("PRIVSYN_RUNS", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "app"]) == 2
    assert paths[0].parent == tmp_path / "runs"
    assert paths[0].name.startswith("asking-app-")
    # Inside the app Flower would pack the results into the next run's app.
    monkeypatch.chdir(app)
    assert cli.main(["run", "."]) == 2
    assert paths[1].parent == tmp_path / "elsewhere"
    assert "privsyn: stopped here" in capsys.readouterr().err


def _budget(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["budget", *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_budget_from_epsilon_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flower_privsyn.privacy.budget")
    common = ("--delta", "3e-6", "--rounds", "20", "--sampling-rate", "0.1", "--json")
    status, out, _ = _budget(capsys, "--epsilon", "1", *common)
    assert status == 0
    report = json.loads(out)
    assert set(report["noise_multiplier"]) == {"pld", "rdp"}
    assert set(report["epsilon_release"]) == {"pld", "rdp"}
    assert {"pld", "rdp"} <= set(report["epsilon_known_cohorts"])
    multiplier = report["noise_multiplier"]["pld"]
    status, out, _ = _budget(capsys, "--noise-multiplier", str(multiplier), *common)
    assert status == 0
    assert json.loads(out)["epsilon_release"]["pld"] == pytest.approx(1, rel=2e-3)


def test_budget_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flower_privsyn.privacy.budget")
    status, out, err = _budget(
        capsys,
        *("--noise-multiplier", "5", "--delta", "0.01", "--rounds", "3"),
        *("--sample-size", "10", "--users", "100"),
    )
    assert status == 0
    assert "epsilon_release" in out
    assert "epsilon_known_cohorts, in every round" in out
    assert "delta 0.01 is not below 1/users = 0.01" in err


def test_budget_under_each_relation(capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--noise-multiplier", "2", "--delta", "1e-6", "--rounds", "3")
    found = {}
    for relation in ("zero-out", "add-remove", "replace-one"):
        status, out, _ = _budget(capsys, *common, "--relation", relation, "--json")
        assert status == 0
        report = json.loads(out)
        assert report["inputs"]["relation"] == relation
        found[relation] = report["epsilon_release"]["pld"]
        assert relation in _budget(capsys, *common, "--relation", relation)[1].splitlines()[0]
    # Twice the sensitivity is half the noise multiplier.
    half = json.loads(_budget(capsys, *common[2:], "--noise-multiplier", "1", "--json")[1])
    assert found["replace-one"] == half["epsilon_release"]["pld"] > found["zero-out"]
    assert found["add-remove"] == found["zero-out"]
    rate = ("--sampling-rate", "0.1", "--relation", "replace-one", "--json")
    report = json.loads(_budget(capsys, *common, *rate)[1])
    assert report["epsilon_release"]["rdp"] is None  # there is no such bound
    assert report["epsilon_release"]["pld"] > 0
    with pytest.raises(SystemExit):
        cli.main(["budget", *common, "--relation", "replace"])
    assert "--relation: invalid choice: 'replace'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--epsilon", "1", "--sample-size", "3", "--users", "9", "--relation", "add-remove"],
            'relation must be "zero-out" or "replace-one" for fixed-size sampling, '
            'got "add-remove".',
        ),
        ([], "Give either --epsilon or --noise-multiplier"),
        (["--epsilon", "1", "--noise-multiplier", "1"], "Give either --epsilon or --noise-m"),
        (
            ["--epsilon", "1", "--sampling-rate", "0.1", "--sample-size", "3"],
            "Give either --sampling-rate or --sample-size, not both.",
        ),
        (["--epsilon", "1", "--sample-size", "3"], "--sample-size needs --population"),
        (["--epsilon", "-1"], "epsilon"),
        (["--epsilon", "1", "--sampling-rate", "1.5"], "rate"),
    ],
)
def test_budget_refuses_contradictions(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("flower_privsyn.privacy.budget")
    status, _, err = _budget(capsys, "--delta", "1e-6", "--rounds", "3", *arguments)
    assert status == 2
    assert sentence in err
    assert err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("privsyn ")


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from flower_privsyn import cli\n"
        "try:\n"
        "    cli.main(['--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'flwr', 'numpy', 'rich', 'pyarrow', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "resume" in done.stdout
