"""`privsyn distil`: text of several kinds, what it prints and keeps, and what it refuses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from flower_privsyn.cli import main
from flower_privsyn.data.public_text import public_documents
from flower_privsyn.errors import DataError
from flower_privsyn.training import causal


@pytest.fixture
def folder(tmp_path: Path, texts: list[str]) -> Path:
    """Twelve texts in three kinds of files."""
    found = tmp_path / "text"
    (found / "below").mkdir(parents=True)
    lines = [json.dumps({"text": text}) for text in texts[:10]]
    (found / "a.jsonl").write_text("\n".join(lines[:6]) + "\n", encoding="utf-8")
    (found / "below" / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[6:]).encode()))
    (found / "c.txt").write_text(texts[10] + "\n" + texts[11], encoding="utf-8")
    (found / ".hidden.txt").write_text("never")
    (found / "empty.txt").write_text("  ")
    (found / "notes.md").write_text("not text")
    return found


def words(folder: Path, llama: Path, gpt2: Path, output: Path, *more: str) -> list[str]:
    given = {"--text": folder, "--teacher": llama, "--student": gpt2, "--output": output}
    return [
        "distil",
        *(str(word) for pair in given.items() for word in pair),
        *("--steps", "2", "--batch-size", "4", "--max-tokens", "16", "--device", "cpu"),
        *more,
    ]


def test_documents_of_all_kinds(folder: Path, texts: list[str]) -> None:
    found = public_documents(folder, setting="--text")
    assert found == [*texts[:10], texts[10] + "\n" + texts[11]]
    assert public_documents(folder / "c.txt", setting="--text") == found[-1:]


def test_a_student_and_what_the_teacher_said_of_the_text(
    folder: Path, llama: Path, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ("--teacher-logits", str(tmp_path / "teacher"))
    assert main(words(folder, llama, gpt2, tmp_path / "a", *kept)) == 0
    said = capsys.readouterr()
    assert "2 steps on" in said.out
    assert "11 texts, loss" in said.out
    assert "Teacher reads" in said.err
    assert (tmp_path / "a" / "tokenizer.json").is_file()
    assert (
        json.loads((tmp_path / "a" / "training.json").read_text())["fingerprint"][
            "distillation"
        ].items()
        >= {"beta": 0.1, "top_k": 10, "rest": "lumped"}.items()
    )
    assert main(words(folder, llama, gpt2, tmp_path / "b", "--pure", *kept)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "teacher", "text"]


def test_it_goes_on_after_an_interruption(
    folder: Path,
    llama: Path,
    gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words(folder, llama, gpt2, tmp_path / "whole")) == 0
    monkeypatch.setattr(causal, "CHECKPOINT_SECONDS", 0.0)
    gradient = causal.add_gradient
    steps: list[float] = []

    def stopped(*args: object, **kwargs: object) -> float:
        if len(steps) == 1:
            raise KeyboardInterrupt
        steps.append(gradient(*args, **kwargs))  # type: ignore[arg-type]
        return steps[-1]

    with monkeypatch.context() as patched:
        patched.setattr(causal, "add_gradient", stopped)
        assert main(words(folder, llama, gpt2, tmp_path / "cut")) == 130
    assert "the same command goes on with it" in capsys.readouterr().err
    assert main(words(folder, llama, gpt2, tmp_path / "cut")) == 0
    whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_without_a_teacher_the_text_alone_is_learnt(
    folder: Path, gpt2: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["distil", "--text", str(folder), "--student", str(gpt2), "--steps", "2"]
    sizes = ["--batch-size", "4", "--max-tokens", "16", "--device", "cpu"]
    assert main([*given, *sizes, "--output", str(tmp_path / "a")]) == 0
    said = capsys.readouterr()
    assert "2 steps on" in said.out
    assert "Teacher reads" not in said.err
    report = json.loads((tmp_path / "a" / "training.json").read_text())
    assert "distillation" not in report["fingerprint"]
    for option in (["--pure"], ["--beta", "0.1"], ["--teacher-logits", str(tmp_path / "t")]):
        assert main([*given, *sizes, "--output", str(tmp_path / "b"), *option]) == 2
        assert f"{option[0]} needs --teacher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--pure", "--beta", "0.1"], "give either --pure or --beta"),
        (["--beta", "-1"], "beta must be a number of at least 0"),
        (["--top-k", "0"], "top_k must be a whole number of at least 1"),
        (["--temperature", "0"], "temperature must be a number above 0"),
        (["--rest", "kept"], "'kept' is not one of"),
        (["--teacher", "privsyn-lm"], "--teacher must have the tokens of"),
        (["--teacher", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--teacher-logits", "OUTPUT"], "must be outside of --output"),
        (["--teacher-logits", "OUTPUT/teacher"], "must be outside of --output"),
        (["--text", "/nowhere.jsonl"], "cannot be read (No such file or directory)"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    changes: list[str],
    sentence: str,
    folder: Path,
    llama: Path,
    gpt2: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes = [word.replace("OUTPUT", str(tmp_path / "a")) for word in changes]
    assert main(words(folder, llama, gpt2, tmp_path / "a", *changes)) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert not (tmp_path / "a").exists()
    assert not said.out


def test_text_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no text \(.jsonl, .jsonl.gz, .json.gz or"):
        public_documents(tmp_path, setting="--text")
    (tmp_path / "a.jsonl").write_text('{"words": "x"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl line 1: expected a JSON object"):
        public_documents(tmp_path, setting="--text")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(DataError, match="UnicodeDecodeError"):
        public_documents(tmp_path, setting="--text")
