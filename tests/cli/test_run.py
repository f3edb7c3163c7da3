"""`privsyn run` and `privsyn resume`: where a run goes, what is refused, what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.run import show_outcome
from flower_privsyn.host import launch
from flower_privsyn.report.sketch_file import SELECTED
from flower_privsyn.run import RunDirectory
from tests.support.flower_app import write_app


def test_the_end_of_a_run_names_the_epsilons_and_the_files(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_outcome(launch.Outcome(path=run.path, error=None)) == 0
    shown = capsys.readouterr().out
    assert f"Run directory: {run.path}" in shown
    assert "epsilon_release       = 2.5 (" in shown
    assert "epsilon_known_cohorts = 5 (" in shown
    assert "delta = 3e-06, 2 releases" in shown
    assert f"Synthetic texts: {run.path / 'synthetic.jsonl'} (5)" in shown
    assert f"Synthetic texts: {run.path / 'synthetic.parquet'} (5)" in shown
    assert [line for line in shown.splitlines() if line.startswith("  ")] == [
        f"  {place}. [b]text {place - 1}[/b]" for place in range(1, 6)
    ]
    assert shown.splitlines()[-1] == f"Next: privsyn inspect {run.path} (what was released)"


@pytest.mark.parametrize(("trust", "told"), [(0.11, True), (0.9, False)])
def test_the_end_of_a_sketch_says_what_its_texts_are_and_how_little_it_heard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trust: float, told: bool
) -> None:
    run = RunDirectory.create(tmp_path / "a", config={"generator": "x"}, strategy="JointSketch")
    run.write_synthetic(
        [{"text": "Call me Ishmael.", "round": 1, "parent": [], "source": SELECTED}]
    )
    run.mark_running()
    run.mark_finished({"trust": trust})
    run.unlock()
    assert show_outcome(launch.Outcome(path=run.path, error=None)) == 0
    shown = capsys.readouterr().out
    assert f"Public texts that were chosen: {run.synthetic_jsonl} (1)" in shown
    assert "Synthetic" not in shown
    assert ("says little (trust 0.11 of 1)" in shown) == told
    assert shown.splitlines()[-1] == f"Next: privsyn inspect {run.path} (what was released)"
    assert main(["inspect", str(run.path)]) == 0
    assert "public texts that were chosen" in capsys.readouterr().out


def test_the_end_of_a_run_says_how_many_of_its_texts_are_public_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path / "a", config={}, strategy="JointSketch")
    run.write_synthetic(
        [
            {"text": f"Text {source}.", "round": 1, "parent": [], "source": source}
            for source in ("written", SELECTED, "written")
        ]
    )
    run.mark_running()
    run.mark_finished()
    run.unlock()
    assert show_outcome(launch.Outcome(path=run.path, error=None)) == 0
    shown = capsys.readouterr().out
    assert f"1 of them chosen from public text: {run.synthetic_jsonl} (3)" in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "app", "--run-dir", "run"], "already holds a run; choose another"),
        (
            ["run", "app", "--run-dir", "file"],
            "file is a file, not a folder",
        ),
        (
            ["run", "app", "--run-dir", "file/below"],
            "where the run is to be written",
        ),
        (["run", "app", "--run-dir", "run", "--set", "resume=true"], "privsyn resume run"),
        (["resume", "run"], "has finished; there is nothing to resume."),
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
    assert main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("privsyn: ")
    assert sentence in last


def test_where_a_run_goes_when_nobody_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = write_app(tmp_path / "app")
    paths: list[Path] = []

    def record(_app: object, path: Path, _values: object, **_: object) -> launch.Outcome:
        paths.append(path)
        return launch.Outcome(path=path, error="stopped here")

    monkeypatch.setattr(launch, "run_app", record)
    monkeypatch.setenv("PRIVSYN_RUNS", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "app"]) == 2
    assert paths[0].parent == tmp_path / "runs"
    assert paths[0].name.startswith("app-")
    # Inside the app Flower would pack the results into the next run's app.
    monkeypatch.chdir(app)
    assert main(["run", "."]) == 2
    assert paths[1].parent == tmp_path / "elsewhere"
    assert "privsyn: stopped here" in capsys.readouterr().err
