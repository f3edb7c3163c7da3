"""A comparison through Flower: what finished stays, what failed says why, and both are written."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.compare import _show
from flower_privsyn.comparison import APP, Comparison, People, make_plan
from flower_privsyn.comparison import run as comparison_run
from flower_privsyn.errors import ConfigError, ModelError, StoppedError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.host.app import load_app
from flower_privsyn.host.launch import Outcome
from flower_privsyn.report.summary import run_costs
from flower_privsyn.run import RunDirectory

QUALITY = {"next_token_accuracy": 0.2, "bits_per_byte": 1.9}
QUIET: dict[str, Any] = {"follower": None, "say": lambda line: None}
SAMPLE = Path(__file__).parents[2] / "baselines" / "popri" / "popri" / "sample" / "users.jsonl"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command: a run that works, one that can only fail once it has begun, and references."""
    return [
        *("compare", "--data", str(SAMPLE), "--users", "8", "--held-out-users", "4"),
        *("--epsilon", "8", "--seeds", "1", "--steps", "2", "--output", str(tmp_path / "out")),
        *("--methods", "public-only", "distill-public", "dp-prompt", "pre-text", "dp-fedavg"),
        "--distil",
        *("--set", "dp-prompt.expand-samples=6", "--set", "dp-prompt.max-new-tokens=8"),
        *("--set", "pre-text.num-rounds=1", "--set", "pre-text.num-candidates=16"),
        *("--set", "pre-text.expand-samples=12", "--set", "pre-text.max-new-tokens=24"),
        *("--set", "pre-text.lookahead=0", "--set", "pre-text.max-samples=2"),
        *(
            "--set",
            "pre-text.embedding-precision=float32",
            "--set",
            "dp-fedavg.round-timeout=0.001",
        ),
    ]


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    return found


def cells(folder: Path) -> dict[str, dict[str, Any]]:
    return {cell["method"]: cell for cell in document(folder)["cells"]}


@pytest.mark.timeout(900)
def test_a_comparison(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PRIVSYN_THREADS", "1")  # one process answers: each loads the models
    out = tmp_path / "out"
    assert main(words) == 1
    shown = capsys.readouterr()
    assert STAMP in shown.out
    assert "1 of 5 cells failed" in shown.err

    first = cells(out)
    floor, failed, done = first["public-only"], first["dp-fedavg"], first["pre-text"]
    assert floor["status"] == done["status"] == "finished"
    assert failed["status"] == "failed"
    assert "users are ready on" in failed["error"]
    assert failed["error"] in (out / "comparison.md").read_text().replace("\\|", "|")
    page = (out / "report.html").read_text()
    assert STAMP in page
    assert "users are ready on" in page

    # What the cell says is what the run's own ledger and counters say.
    run = RunDirectory.open(out / done["run"])
    assert 0 < done["epsilon_release"] <= 8
    assert done["spent"] == [[1, done["epsilon_release"]]]
    assert done["costs"]["rounds_lost"] == 0
    counted = run_costs(run)
    for key in ("rounds", "floats_up", "bytes_up", "floats_down", "bytes_down"):
        assert done["costs"][key] == getattr(counted, key)
    assert done["costs"]["client_cpu_seconds"] > 0
    written = [json.loads(line)["text"] for line in run.synthetic_jsonl.read_text().splitlines()]
    assert set(done["samples"]) <= set(written)
    # Its writer has taught a second student of the same texts.
    assert done["distilled"]["bits_per_byte"] != done["quality"]["bits_per_byte"]
    assert "distilled" not in floor
    taught = first["distill-public"]
    assert taught["status"] == "finished"
    assert taught["epsilon"] == taught["costs"]["bytes_up"] == 0
    assert taught["samples"] == []
    # What owners told in other words has an epsilon of its own, and none of the others' kind.
    told = first["dp-prompt"]
    assert told["status"] == "finished"
    assert told["epsilon"] is None
    assert not {"epsilon_release", "delta"} & told.keys()
    assert told["local_epsilon"]["user"] >= told["local_epsilon"]["sample"]
    table = (out / "comparison.md").read_text().splitlines()
    row = next(line for line in table if line.startswith("| DP-Prompt"))
    price, of_user = (f"{told['local_epsilon'][of]:,.0f}" for of in ("sample", "user"))
    assert row.startswith(f"| DP-Prompt | - | {price}, {of_user} | ")
    assert f"{price}, {of_user}" in page
    bits = {cell["quality"]["bits_per_byte"] for cell in (floor, taught, told, done)}
    assert len(bits) == 4  # few tokens and two steps: accuracies may coincide
    assert not (run.path / "evaluation.json").exists()

    # Held-out users are in no file a node reads.
    private, held_out = (
        {json.loads(line)["client_id"] for line in (out / "data" / name).open()}
        for name in ("private.jsonl", "held_out.jsonl")
    )
    assert (len(private), len(held_out)) == (8, 4)
    assert not private & held_out

    # Again, as after an interruption between the run and its figures: the run is not repeated,
    # nothing is spent, and the figures are the same. The failed cell is tried once more, by going
    # on with the run that it had begun, also where nothing says any more how.
    ledger = run.ledger_file.read_bytes()
    (out / "cells" / "pre-text-eps-8-seed-0" / "cell.json").unlink()
    (out / "cells" / "dp-fedavg-eps-8-seed-0" / "run.owner" / "own.json").unlink()
    assert main(words) == 1
    again = cells(out)
    assert run.ledger_file.read_bytes() == ledger
    assert again["pre-text"]["quality"] == done["quality"]
    assert again["pre-text"]["texts"] == done["texts"]
    assert again["dp-fedavg"]["error"] == failed["error"]


class TestFolder:
    def plan(self, *, users: int = 24, **changes: Any) -> Any:
        return make_plan(
            **{
                "app": load_app(APP),
                "people": People.read(str(SAMPLE), users=users, held_out_users=12),
                "epsilons": [8.0],
                "methods": ["public-only"],
                "seeds": 1,
                **changes,
            }
        )

    def test_other_users_or_another_model_are_not_mixed_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "compare.json").write_text(
            json.dumps({"fixed": Comparison(self.plan(), tmp_path / "other")._fixed})
        )
        Comparison(self.plan(), tmp_path)
        Comparison(self.plan(methods=["public-only", "popri"], seeds=2, epsilons=[1, 8]), tmp_path)
        with pytest.raises(ConfigError, match="holds a comparison with other users"):
            Comparison(self.plan(users=25), tmp_path)
        with pytest.raises(ConfigError, match="another value of downstream"):
            Comparison(self.plan(downstream="privsyn-lm"), tmp_path)
        monkeypatch.setattr(comparison_run, "weight_files", lambda model: {"other": "weights"})
        with pytest.raises(ConfigError, match="another value of downstream_files"):
            Comparison(self.plan(), tmp_path)

    def test_a_folder_of_something_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(ConfigError, match="is not empty and holds no comparison"):
            Comparison(self.plan(), tmp_path)

    def test_what_a_kill_left_is_not_continued_with_other_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"

        def killed(*_: Any, **__: Any) -> dict[str, Any]:
            raise KeyboardInterrupt

        monkeypatch.setattr(Comparison, "_outcome", killed)
        first = Comparison(self.plan(methods=["popri"]), out)
        with pytest.raises(KeyboardInterrupt):
            first.run(**QUIET)
        # As it is while the cell is running, too: nothing has been written of it since.
        (cell,) = cells(out).values()
        assert cell["status"] == "running"
        changed = Comparison(self.plan(methods=["popri"], settings=["popri.num-rounds=2"]), out)
        with pytest.raises(ConfigError, match="was run with num-rounds = 8, and 2 is asked for"):
            changed.run(**QUIET)

        monkeypatch.setattr(Comparison, "_outcome", lambda *_, **__: {"quality": QUALITY})
        first.run(**QUIET)
        (cell,) = cells(out).values()
        assert (cell["status"], cell["wall_seconds"]) == ("finished", None)  # a part of it

    def test_a_run_that_its_owner_stopped_ends_the_comparison_and_is_no_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        sentence = "Stopped before round 3 of 8, as was asked"

        def stopped(app: Any, path: Path, *_: Any, **__: Any) -> Outcome:
            return Outcome(path=path, error=sentence)

        monkeypatch.setattr(comparison_run, "run_app", stopped)
        comparison = Comparison(self.plan(methods=["popri", "pre-text"]), out)
        with pytest.raises(StoppedError, match=sentence):
            comparison.run(follower=lambda: contextlib.nullcontext(print), say=lambda line: None)
        first, second = (cell["status"] for cell in document(out)["cells"])
        assert (first, second) == ("running", "pending")
        (cell,) = (json.loads(file.read_text()) for file in out.glob("cells/*/cell.json"))
        assert (cell["status"], cell["error"]) == ("pending", None)

    def test_a_second_student_that_fails_leaves_the_first_in_the_table(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out, found = tmp_path / "out", {"quality": QUALITY}
        monkeypatch.setattr(Comparison, "_outcome", lambda *_, **__: found)
        Comparison(self.plan(methods=["finetune-private"]), out).run(**QUIET)
        (before,) = cells(out).values()
        comparison = Comparison(self.plan(methods=["finetune-private"], distil=True), out)

        def failing(*_: Any, **__: Any) -> dict[str, Any]:
            raise ConfigError("no teacher")

        monkeypatch.setattr(Comparison, "_outcome", failing)
        failed = comparison.run(**QUIET)
        (cell,) = failed["cells"]
        assert (cell["status"], cell["error"]) == ("finished", "no teacher")
        assert (cell["quality"], cell["wall_seconds"]) == (QUALITY, before["wall_seconds"])
        assert _show(comparison, failed) == 1
        assert "1 of 1 cells failed" in capsys.readouterr().err

        both = {"quality": QUALITY, "distilled": QUALITY}
        monkeypatch.setattr(Comparison, "_outcome", lambda *_, **__: both)
        (cell,) = comparison.run(**QUIET)["cells"]
        assert (cell["distilled"], cell["quality"], cell["error"]) == (QUALITY, QUALITY, None)

    def test_a_model_that_is_none_is_named_once_and_first(self, tmp_path: Path) -> None:
        comparison = Comparison(self.plan(downstream=str(tmp_path / "no-model")), tmp_path / "out")
        with pytest.raises(ModelError, match="no-model"):
            comparison.run(follower=None, say=print)  # type: ignore[arg-type]
        assert not (tmp_path / "out" / "cells").exists()
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700  # there are times in it
