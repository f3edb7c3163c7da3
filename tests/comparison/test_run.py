"""A comparison through Flower: what finished stays, what failed says why, and both are written."""

import contextlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from flower_privsyn.catalogue import strategy_of
from flower_privsyn.cli import main
from flower_privsyn.client_apps.training import app as client_app
from flower_privsyn.comparison import (
    APP,
    Comparison,
    People,
    make_plan,
)
from flower_privsyn.comparison import run as comparison_run
from flower_privsyn.comparison.measures import MEASURED, READ, REFERENCES, USERS_FILE
from flower_privsyn.comparison.plan import FLOORS, Plan
from flower_privsyn.errors import ConfigError, ModelError, StoppedError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.host.app import App, load_app
from flower_privsyn.host.launch import Outcome
from flower_privsyn.report.summary import RunSummary
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.directory import TRAINED_MODEL
from flower_privsyn.run.run_format import FORMAT
from flower_privsyn.testing import LoopbackGrid, flower_identity

QUALITY = {"next_token_accuracy": 0.2, "bits_per_byte": 1.9}
QUIET: dict[str, Any] = {
    "say": lambda line: None,
}
SAMPLE = Path(__file__).parents[2] / "flower_privsyn" / "data" / "sample" / "users.jsonl"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A comparison by the command, in a folder, and what it printed."""

    words: list[str]
    folder: Path
    code: int
    shown: str
    complained: str
    read: dict[str, set[str]]

    @property
    def table(self) -> str:
        return (self.folder / "comparison.md").read_text()


def run_here(_: App, path: Path, values: Mapping[str, Any], *, say: Any) -> Outcome:
    """A run by the app's two parts, in this process: neither loads the models another time."""
    strategy = strategy_of({**values, "run-dir": str(path)})
    with flower_identity():
        strategy.start(LoopbackGrid(client_app, num_nodes=2, run_config=values))
    return Outcome(path=path, error=None)


def noting(reference: Any, read: set[str]) -> Any:
    """A reference that notes which settings it reads."""

    class Noted(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            read.add(key)
            return super().__getitem__(key)

    return lambda job, measures: reference(replace(job, values=Noted(job.values)), measures)


def command(folder: Path, *methods: str) -> list[str]:
    """The words of a small comparison."""
    public = folder / "public.jsonl"
    places = ("mill", "bridge", "market", "harbour", "school")
    # No sentences: of a small model that is to end one, all texts may be left out.
    rows = ({"text": f"Boat {n} turns by the old {places[n % 5]}, slowly"} for n in range(300))
    public.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # The beginnings of what people of the sample said: all of it is read again for every student.
    said = (json.loads(line) for line in SAMPLE.open(encoding="utf-8"))
    users = "".join(json.dumps({**row, "text": row["text"][:200]}) + "\n" for row in said)
    (folder / "users.jsonl").write_text(users, encoding="utf-8")
    return [
        *("compare", "--data", str(folder / "users.jsonl"), "--users", "8"),
        *("--held-out-users", "4"),
        *("--tuning-users", "4"),
        *("--epsilon", "8", "--seeds", "1", "--steps", "2", "--output", str(folder / "out")),
        *("--methods", *methods, "--public-text", str(public)),
        *("--set", "pre-text.num-rounds=1", "--set", "pre-text.num-candidates=16"),
        *("--set", "pre-text.synthetic-samples=12", "--set", "pre-text.max-new-tokens=48"),
        *("--set", "pre-text.lookahead=0", "--set", "pre-text.max-samples=2"),
        *("--set", "generator=privsyn-lm"),
        *("--set", "told-domain.synthetic-samples=12", "--set", "prompt-chosen.least-selected=32"),
        *(
            "--set",
            "prompt-chosen.synthetic-samples=12",
            "--set",
            "prompt-chosen.least-row-tokens=4",
        ),
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """A run that works, a cell that can only fail once it has begun, and references."""
    folder = tmp_path_factory.mktemp("compared")
    words = command(folder, "expand-only", "dp-prompt", "pre-text")
    words += ["--set", f"expand-only.prompt={folder / 'gone.txt'}"]
    words += ["--set", "dp-prompt.synthetic-samples=6", "--set", "dp-prompt.max-new-tokens=8"]
    shown, complained = io.StringIO(), io.StringIO()
    read: dict[str, set[str]] = {name: set() for name in REFERENCES}
    noted = {name: noting(made, read[name]) for name, made in REFERENCES.items()}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison_run, "REFERENCES", noted)
        patched.setenv("PRIVSYN_CACHE", str(folder / "cache"))
        patched.setattr(comparison_run, "run_app", run_here)
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(complained):
            code = main(words)
        yield Compared(
            words=words,
            folder=folder / "out",
            code=code,
            shown=shown.getvalue(),
            complained=complained.getvalue(),
            read=read,
        )


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "compare.json").read_text())
    return found


def cells(folder: Path) -> dict[str, dict[str, Any]]:
    return {cell["method"]: cell for cell in document(folder)["cells"]}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cell_is_run_by_the_processes_of_a_run(
    compared: Compared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    assert main(command(tmp_path, "pre-text")) == 0
    found, here = cells(tmp_path / "out")["pre-text"], cells(compared.folder)["pre-text"]
    assert found["status"] == "finished"
    assert found["epsilon_release"] == here["epsilon_release"]
    for key in ("rounds", "floats_up", "floats_down"):
        assert found["costs"][key] == here["costs"][key]


@pytest.mark.timeout(600)
class TestComparison:
    def test_all_it_writes_is_stamped_and_a_failure_says_why(self, compared: Compared) -> None:
        assert compared.code == 1
        assert "1 of 8 cells failed" in compared.complained
        found = cells(compared.folder)
        status = {name: cell["status"] for name, cell in found.items()}
        assert status == {**dict.fromkeys(status, "finished"), "expand-only": "failed"}
        for written in (compared.shown, compared.table):
            assert STAMP in written
        assert "gone.txt" in found["expand-only"]["error"]
        assert "gone.txt" in compared.table

    def test_a_cell_says_what_its_run_spent_and_sent(self, compared: Compared) -> None:
        done = cells(compared.folder)["pre-text"]
        run = RunDirectory.open(compared.folder / done["run"])
        assert 0 < done["epsilon_release"] <= 8
        assert done["costs"]["rounds_lost"] == 0
        counted = RunSummary.of(run).costs
        assert counted is not None
        for key in ("rounds", "floats_up", "bytes_up", "floats_down", "bytes_down"):
            assert done["costs"][key] == counted[key]
        assert done["costs"]["client_cpu_seconds"] > 0
        written = {json.loads(line)["text"] for line in run.synthetic_jsonl.open()}
        assert set(done["samples"]) <= written
        assert not (run.path / "evaluation.json").exists()

    def test_students_learn_apart_and_stand_beside_every_floor(self, compared: Compared) -> None:
        found = cells(compared.folder)
        floors = [found[name] for name in FLOORS]
        for floor in floors[1:]:
            assert floor["epsilon"] == floor["costs"]["bytes_up"] == 0
            assert bool(floor["samples"]) == (floor["method"] == "told-domain")
        students = [*floors, found["dp-prompt"], found["pre-text"]]
        # Few tokens and two steps: accuracies may coincide.
        assert len({cell["quality"]["bits_per_byte"] for cell in students}) == len(students)

    def test_what_a_reference_reads_is_listed(self, compared: Compared) -> None:
        assert compared.read.keys() == READ.keys()
        for name, keys in compared.read.items():
            assert keys - {"seed"} - MEASURED <= READ[name], name
        assert compared.read["distill-public"] == {"public-text", "teacher"}
        assert compared.read["told-domain"] > {"domain", "generator"}

    def test_a_difference_is_of_the_same_people(self, compared: Compared) -> None:
        rows = {row["method"]: row for row in document(compared.folder)["summary"]}
        best = min(FLOORS, key=lambda name: rows[name]["bits_per_byte"]["mean"])
        found = rows["pre-text"]["over_floor"]
        assert found["of"] == rows[best]["title"]
        means = [rows[name]["bits_per_byte"]["mean"] for name in (best, "pre-text")]
        assert found["value"] == pytest.approx(means[0] - means[1])
        assert found["low"] <= found["value"] <= found["high"]
        assert rows[best]["over_floor"] is None
        assert rows["pre-text"]["to_best"] is None  # alone at its epsilon
        counts = np.load(compared.folder / "cells" / "pre-text-eps-8-seed-0" / USERS_FILE)
        assert counts.shape == (4, 4)
        bits = counts[:, 2].sum() / math.log(2) / counts[:, 3].sum()
        assert bits == pytest.approx(means[1])

    def test_what_owners_told_in_other_words_has_an_epsilon_of_its_own(
        self, compared: Compared
    ) -> None:
        told = cells(compared.folder)["dp-prompt"]
        assert told["epsilon"] is None
        assert not {"epsilon_release", "delta"} & told.keys()
        local = told["local_epsilon"]
        assert local["user"] >= local["sample"]
        price = f"{local['sample']:,.0f}, {local['user']:,.0f}"
        assert f"| DP-Prompt | - | {price} | " in compared.table

    def test_held_out_users_are_in_no_file_a_node_reads(self, compared: Compared) -> None:
        private, held_out = (
            {json.loads(line)["client_id"] for line in (compared.folder / "data" / name).open()}
            for name in ("private-0.jsonl", "held_out.jsonl")
        )
        assert (len(private), len(held_out)) == (8, 4)
        assert not private & held_out

    def test_what_a_kill_between_a_run_and_its_figures_left_is_measured_again(
        self, compared: Compared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run is not repeated, nothing is spent, and what failed is tried once more."""
        monkeypatch.setattr(Plan, "check", lambda *_: None)  # as it was checked before
        before = cells(compared.folder)
        run = RunDirectory.open(compared.folder / before["pre-text"]["run"])
        ledger = run.ledger_file.read_bytes()
        (compared.folder / "cells" / "pre-text-eps-8-seed-0" / "cell.json").unlink()
        assert main(compared.words) == 1
        again = cells(compared.folder)
        assert run.ledger_file.read_bytes() == ledger
        for part in ("quality", "texts"):
            assert again["pre-text"][part] == before["pre-text"][part]
        assert again["expand-only"]["error"] == before["expand-only"]["error"]


class TestFolder:
    @pytest.fixture(autouse=True)
    def floors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Floors are in every comparison, and what they are is shown above."""
        known = dict.fromkeys(FLOORS, lambda *_: {"quality": QUALITY})
        monkeypatch.setattr(comparison_run, "REFERENCES", known)

    def plan(self, *, users: int = 24, **changes: Any) -> Plan:
        """As it is before its runs are checked."""
        with mock.patch.object(Plan, "check"):
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

    def test_a_student_is_trained_anew_of_the_same_release(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a method with its own rate at as many times that; what is there is not made again."""
        comparison = Comparison(self.plan(), tmp_path)
        config = {"student-steps": 100, "learning-rate": 1e-4}
        (tmp_path / "run" / TRAINED_MODEL).mkdir(parents=True)
        run: Any = SimpleNamespace(path=tmp_path / "run", config=config, mark_failed=lambda _: None)
        job: Any = SimpleNamespace(values={"learning-rate": 1e-4})
        asked: list[list[str]] = []

        def resume(path: Path, *, settings: list[str]) -> Any:
            asked.append(settings)
            return SimpleNamespace(error=None)

        monkeypatch.setattr(comparison_run, "resume_run", resume)
        own = comparison.plan.training
        fast = replace(own, max_steps=300, learning_rate=4 * own.learning_rate)
        for how, name in (
            (replace(own, max_steps=100), "as-it-is"),
            (fast, "fast"),
            (fast, "fast"),
        ):
            comparison._taught(job, run, how, tmp_path / name)
            assert (tmp_path / name).is_dir()
        assert asked == [["student-steps=300", "learning-rate=0.0004"]]

    def test_a_second_command_adds_to_the_table(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And takes nothing from it, whatever becomes of its own cells."""
        monkeypatch.setattr(Comparison, "_outcome", lambda *_, **__: {"quality": QUALITY})
        Comparison(self.plan(methods=["popri"]), tmp_path, command="one").run(**QUIET)

        def interrupted(*_: Any, **__: Any) -> dict[str, Any]:
            raise StoppedError("stopped")

        monkeypatch.setattr(Comparison, "_outcome", interrupted)
        second = self.plan(methods=["pre-text"], seeds=2, epsilons=[1.0])
        with pytest.raises(StoppedError):
            Comparison(second, tmp_path, command="two").run(**QUIET)
        found = document(tmp_path)
        assert found["commands"] == ["one", "two"]
        status = {(cell["method"], cell["epsilon"]): cell["status"] for cell in found["cells"]}
        assert status["popri", 8.0] == "finished"
        assert status["pre-text", 1.0] == "pending"
        assert [row["method"] for row in found["summary"]] == [*FLOORS, "pre-text", "popri"]
        assert "| POPri | 8 | 20.00 | " in (tmp_path / "comparison.md").read_text()

    def test_a_reference_is_measured_anew_for_what_it_reads_alone(self, tmp_path: Path) -> None:
        Comparison(self.plan(), tmp_path).run(**QUIET)
        # Whoever made the folder: a ceiling's student has learnt private text.
        assert all(cell.stat().st_mode & 0o077 == 0 for cell in (tmp_path / "cells").iterdir())
        Comparison(self.plan(settings=["num-candidates=8", "max-samples=2"]), tmp_path).run(**QUIET)
        for setting, method in (
            ("domain=speeches", "told-domain"),
            ("teacher=privsyn-tiny", "distill-public"),
            ("public-text=mine.jsonl", "random-public"),
            ("max-tokens=32", "public-only"),
        ):
            changed = Comparison(self.plan(settings=[setting]), tmp_path)
            with pytest.raises(ConfigError, match=f"{method}-eps-0-seed-0 was run with "):
                changed.run(**QUIET)

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

        monkeypatch.setattr(comparison_run, "run_app", killed)
        first = Comparison(self.plan(methods=["popri"]), out)
        with pytest.raises(KeyboardInterrupt):
            first.run(**QUIET)
        # As it is while the cell is running, too: nothing has been written of it since.
        assert cells(out)["popri"]["status"] == "running"
        changed = Comparison(self.plan(methods=["popri"], settings=["popri.num-rounds=2"]), out)
        with pytest.raises(ConfigError, match="was run with num-rounds = 4, and 2 is asked for"):
            changed.run(**QUIET)

        monkeypatch.setattr(Comparison, "_outcome", lambda *_, **__: {"quality": QUALITY})
        first.run(**QUIET)
        cell = cells(out)["popri"]
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
            comparison.run(**QUIET)
        found = cells(out)
        assert (found["pre-text"]["status"], found["popri"]["status"]) == ("running", "pending")
        (file,) = out.glob("cells/pre-text-*/cell.json")
        cell = json.loads(file.read_text())
        assert (cell["status"], cell["error"]) == ("pending", None)

        # What it began goes on, also where nothing says any more how.
        resumed: dict[str, Any] = {}

        def resume(path: Path, **asked: Any) -> Outcome:
            resumed.update(asked, path=path)
            return Outcome(path=path, error=sentence)

        monkeypatch.setattr(comparison_run, "resume_run", resume)
        monkeypatch.setattr(comparison_run, "run_app", None)
        (file.parent / "run").mkdir()
        (file.parent / "run" / "config.json").write_text(json.dumps({"format": FORMAT}))
        with pytest.raises(StoppedError):
            comparison.run(**QUIET)
        assert resumed["path"] == file.parent / "run"
        assert resumed["values"]["num-rounds"] == cell["settings"]["num-rounds"]

    def test_a_model_that_is_none_is_named_once_and_first(self, tmp_path: Path) -> None:
        plan = self.plan(downstream=str(tmp_path / "no-model"))
        with pytest.raises(ModelError, match="no-model"):
            Comparison(plan, tmp_path / "out")
        assert not (tmp_path / "out" / "cells").exists()
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700  # there are times in it
