"""`privsyn match`: the rows that both models find likely, their scores, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.cli import main
from flower_privsyn.data.public_text import public_documents
from flower_privsyn.training import distribution_matching
from flower_privsyn.training.distribution_matching import LanguageModelScorer
from flower_privsyn.training.selection import Rows
from flower_privsyn.training.tokens import token_rows


@pytest.fixture
def corpus(tmp_path: Path, texts: list[str]) -> Path:
    """Thirty texts, two of them twice."""
    file = tmp_path / "corpus.jsonl"
    given = [*texts[:30], texts[3], texts[4]]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in given))
    return file


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))


def words(corpus: Path, private: Path, output: Path, *more: str) -> list[str]:
    given = {"--text": corpus, "--private": private, "--output": output, "--share": "0.5"}
    return [
        "match",
        *(str(word) for pair in given.items() for word in pair),
        *("--least-rows", "4", "--device", "cpu", *more),
    ]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_rows_are_the_best_by_both_models(
    corpus: Path,
    llama: Path,
    gpt2: Path,
    texts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from transformers import AutoTokenizer

    output = tmp_path / "chosen.jsonl"
    assert main(words(corpus, llama, output, "--public", str(gpt2))) == 0
    said = capsys.readouterr()
    rows = Rows(tokens=token_rows(AutoTokenizer.from_pretrained(llama), texts[:30]))
    by = {
        name: LanguageModelScorer(model=model)(rows)
        for name, model in (("private", llama), ("public", gpt2))
    }
    best = np.argsort(-(by["private"] + by["public"]), kind="stable")
    found = lines(output)
    assert [line["row"] for line in found] == best[: len(found)].tolist()
    assert [line["text"] for line in found] == [texts[line["row"]] for line in found]
    for line in found:
        assert line["score"] == pytest.approx(line["private"] + line["public"])
        for name, scores in by.items():
            assert line[name] == pytest.approx(scores[line["row"]], rel=1e-5)
    sizes = [len(row) for row in rows.tokens]
    total = sum(sizes) + sizes[3] + sizes[4]
    used = sum(sizes[line["row"]] for line in found)
    assert used <= total / 2 < used + sizes[best[len(found)]]
    assert f"{len(found)} of 32 rows with {used:,} of {total:,} tokens" in said.out
    assert "The public model reads" in said.err
    assert public_documents(output, setting="--text") == [line["text"] for line in found]
    assert not (tmp_path / "chosen.jsonl.scores").exists()


def test_the_rows_are_those_that_training_made_likelier(
    corpus: Path, llama: Path, gpt2: Path, tmp_path: Path
) -> None:
    output = tmp_path / "chosen.jsonl"
    assert main(words(corpus, llama, output, "--against", str(gpt2))) == 0
    found = lines(output)
    scores = [line["score"] for line in found]
    assert scores == sorted(scores, reverse=True)
    for line in found:
        assert line["score"] == pytest.approx(line["private"] - line["against"])


def test_scores_serve_other_choices(
    corpus: Path,
    llama: Path,
    gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = ("--scores", str(tmp_path / "scores"))
    assert main(words(corpus, llama, tmp_path / "a", "--public", str(gpt2), *kept)) == 0
    scored: list[str] = []
    score = LanguageModelScorer.__call__

    def seen(self: LanguageModelScorer, rows: Rows) -> Any:
        scored.append(str(self.model))
        return score(self, rows)

    monkeypatch.setattr(LanguageModelScorer, "__call__", seen)
    alone = ("--share", "0.3", *kept)
    assert main(words(corpus, llama, tmp_path / "b", *alone)) == 0
    assert main(words(corpus, gpt2, tmp_path / "c", "--public", str(llama), *alone)) == 0
    assert scored == []
    assert main(words(corpus, llama, tmp_path / "d", *alone)) == 0
    assert scored == [str(llama)]
    private = [line["private"] for line in lines(tmp_path / "b")]
    assert private == sorted(private, reverse=True)
    assert "public" not in lines(tmp_path / "b")[0]
    assert {line["row"] for line in lines(tmp_path / "b")} != {
        line["row"] for line in lines(tmp_path / "d")
    }


def test_it_goes_on_after_an_interruption(
    corpus: Path,
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(distribution_matching, "BLOCK_ROWS", 8)
    assert main(words(corpus, llama, tmp_path / "whole")) == 0
    blocks: list[int] = []
    score = LanguageModelScorer.__call__

    def stopped(self: LanguageModelScorer, rows: Rows) -> Any:
        if len(blocks) == 2:
            raise KeyboardInterrupt
        blocks.append(len(rows))
        return score(self, rows)

    with monkeypatch.context() as patched:
        patched.setattr(LanguageModelScorer, "__call__", stopped)
        assert main(words(corpus, llama, tmp_path / "cut")) == 130
    assert "the same command goes on with it" in capsys.readouterr().err
    assert main(words(corpus, llama, tmp_path / "cut")) == 0
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["--public", "privsyn-lm"], "--public must have the tokens of"),
        (["--against", "privsyn-lm"], "--against must have the tokens of"),
        (["--against", "a", "--public", "b"], "give either --public or --against"),
        (["--share", "0"], "share must be a number above 0 and at most 1"),
        (["--share", "0.01"], "share = 0.01 of"),
        (["--share", "0.1"], "fewer than a batch of 4: raise it, or give more public text"),
        (["--least-row-tokens", "60"], "no row has a score"),
        (["--least-row-tokens", "65"], "--least-row-tokens must be a whole number"),
        (["--text", "/nowhere.jsonl"], '--text = "/nowhere.jsonl": /nowhere.jsonl cannot be read'),
        (["--private", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--output", "/nowhere/at/all"], "--output must be a file in a folder that is there"),
        (["--output", "corpus.jsonl"], "--output corpus.jsonl is the corpus: name another file"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(
    changes: list[str],
    sentence: str,
    corpus: Path,
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words(corpus, llama, tmp_path / "chosen", *changes)) == 2
    said = capsys.readouterr()
    assert sentence in said.err.splitlines()[-1]
    assert not said.out
    assert not (tmp_path / "chosen").exists()
