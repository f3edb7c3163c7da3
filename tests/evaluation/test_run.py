"""The evaluation of a whole run, and the command that makes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.evaluate import rows
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, DataError, RunDirectoryError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.run import compare_texts, evaluate_run, split_users
from flower_privsyn.files import write_json
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.testing import HashEmbedder
from flower_privsyn.training.causal import CausalTraining
from tests.support.federation import WORDS, make_users

Builder = Callable[..., Any]
COURT, NATURE = " ".join(WORDS[:8]), " ".join(WORDS[8:16])


@pytest.fixture
def finished(federation: Builder, settings: Builder, evolution: Builder) -> RunDirectory:
    """A run that held a third of 90 users out and wrote 40 texts."""
    strategy = evolution(
        settings(num_rounds=2, epsilon=20.0, held_out_fraction=0.3, synthetic_samples=40)
    )
    strategy.start(federation(make_users(90)))
    return RunDirectory.open(strategy.run.path)


def stamps(record: Any) -> int:
    """How many records inside a JSON value carry the stamp."""
    if isinstance(record, dict):
        return (record.get("stamp") == STAMP) + sum(map(stamps, record.values()))
    return sum(map(stamps, record)) if isinstance(record, list) else 0


class TestCompare:
    def test_copies_of_users_and_of_strangers_are_told_apart(self) -> None:
        strangers = [f"stranger {i} writes of lake {i}" for i in range(20)]
        users = [f"user {i} talks about hill {i}" for i in range(20)]
        synthetic = [*users[:5], *(f"machine {i} says word {i}" for i in range(15))]
        found = compare_texts(
            synthetic,
            strangers,
            private=users,
            embedder=HashEmbedder(),
            embedding_model="hash-32",
        )
        assert found.private_copies is not None
        assert (found.private_copies.exact, found.held_out_copies.exact) == (0.25, 0.0)


class TestEvaluateRun:
    def test_everything_at_once(self, finished: RunDirectory, gpt2: Path, tmp_path: Path) -> None:
        words = [f"word{i}" for i in range(128)]
        across = " ".join(words[56:72])  # the cut between two samples
        with finished.synthetic_jsonl.open("a") as file:
            file.write(json.dumps({"text": across}) + "\n")
        before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
        private, held_out = split_users(finished.config, make_users(90))
        assert len(private) + len(held_out) == 90
        private = Users.from_rows([("someone", " ".join(words))])
        found = evaluate_run(
            finished,
            held_out,
            private=private,
            downstream=gpt2,
            training=CausalTraining(max_steps=30, learning_rate=1e-2, device="cpu"),
            work=tmp_path / "work",
            embedder=HashEmbedder(),
        )
        assert found.held_out_users == len(held_out)
        assert found.held_out_texts == 3 * len(held_out)
        assert found.texts is not None
        assert found.texts.private_copies is not None
        assert found.texts.private_copies.windows == 1 / 41
        learned = found.learned
        assert learned is not None
        # What the run wrote is about courts, as the held-out users are.
        entropy = learned.release.cross_entropy.value
        assert entropy < learned.before.cross_entropy.value - 0.5
        assert learned.random_public.users == len(held_out)
        # Nothing of it stands where readers are promised the run's epsilon.
        assert {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")} == before
        content = found.to_dict()
        assert content["stamp"] == STAMP
        assert stamps(content) >= 9
        shown = [name for name, _ in rows(found)][:3]
        assert shown == ["before", "the same steps on random public text", "with the release"]

    def test_the_model_of_a_run_is_measured_beside_as_many_random_rows(
        self, finished: RunDirectory, gpt2: Path, tmp_path: Path
    ) -> None:
        import shutil

        shutil.copytree(gpt2, finished.path / "models" / "final")
        finished.synthetic_jsonl.unlink()
        document = finished.document
        document["config"] |= {"model": "privsyn-tiny", "learning-rate": 1e-3}
        # As a student that learnt from public text, with as many steps of as many rows.
        document["config"] |= {"student-steps": 1, "training-batch-size": 3}
        write_json(finished.config_file, document)
        _, held_out = split_users(finished.config, make_users(90))
        ended: list[str] = []
        found = evaluate_run(
            finished,
            held_out,
            work=tmp_path / "w",
            embedder=HashEmbedder(),
            progress=Progress(ended=lambda stage: ended.append(f"{stage.name}: {stage.done}")),
        )
        assert "Fine-tune on 3 texts: 1" in ended
        assert found.texts is None
        assert found.learned is not None
        assert found.learned.model == "privsyn-tiny"
        assert found.learned.release.users == len(held_out)
        with pytest.raises(DataError, match="wrote no synthetic text"):
            evaluate_run(
                finished, held_out, embedder=HashEmbedder(), downstream=gpt2, work=tmp_path / "w"
            )

    def test_users_who_took_part_are_not_held_out(
        self, finished: RunDirectory, tmp_path: Path
    ) -> None:
        private, _ = split_users(finished.config, make_users(90))
        with pytest.raises(ConfigError, match="must not have taken part"):
            evaluate_run(finished, private, private=private, work=tmp_path / "w")

    def test_a_run_that_has_not_finished(self, finished: RunDirectory, tmp_path: Path) -> None:
        _, held_out = split_users(finished.config, make_users(90))
        finished.mark_running()
        with pytest.raises(RunDirectoryError):
            evaluate_run(finished, held_out, work=tmp_path / "w")

    def test_no_work_folder_in_the_run_directory(self, finished: RunDirectory, gpt2: Path) -> None:
        _, held_out = split_users(finished.config, make_users(90))
        for work in (finished.path / "evaluation", finished.path / "x" / ".." / "y"):
            with pytest.raises(ConfigError, match="the run directory"):
                evaluate_run(finished, held_out, downstream=gpt2, work=work)


class TestCommand:
    def write(self, path: Path, users: Users) -> Path:
        lines = [
            json.dumps({"client_id": users.user_ids[owner], "text": text})
            for text, owner in zip(users.texts, users.owners, strict=True)
        ]
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_from_the_run_s_own_data(
        self,
        finished: RunDirectory,
        gpt2: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        data = self.write(tmp_path / "users.jsonl", make_users(90))
        arguments = ["evaluate", str(finished.path), "--users", str(data)]
        assert main([*arguments, "--downstream", str(gpt2), "--steps", "3"]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"[{STAMP}]")
        for words in (
            "Fréchet distance",
            "with the release",
            "copies of the users' text",
        ):
            assert words in out
        assert "Fine-tune on" in err
        written = finished.path.with_name("run.evaluation")
        record = json.loads((written / "evaluation.json").read_text())
        assert record["stamp"] == STAMP
        assert record["texts"]["embedding_model"] == "all-MiniLM-L6-v2"
        assert record["learned"]["random_public"]["stamp"] == STAMP
        assert (written / "downstream" / "model.safetensors").is_file()
        # The page with private quality is stamped, and lies beside the figures.
        page = (written / "report.html").read_text(encoding="utf-8")
        assert STAMP in page
        assert "the same steps on random public text" in page
        assert not list(finished.path.rglob("*.html"))

    def test_the_figures_are_printed_where_no_page_can_be_made(
        self,
        finished: RunDirectory,
        gpt2: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """They took minutes, and the extra of the quickstart has no matplotlib."""
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        data = self.write(tmp_path / "users.jsonl", make_users(90))
        arguments = ["evaluate", str(finished.path), "--users", str(data)]
        assert main([*arguments, "--downstream", str(gpt2), "--steps", "3"]) == 0
        out = capsys.readouterr().out
        assert "with the release" in out
        assert "Page: none. " in out
        assert "matplotlib" in out
