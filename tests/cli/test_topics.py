"""`privsyn topics`: what it makes of public text, what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.cli import main
from flower_privsyn.cli.topics import _is_apart
from flower_privsyn.embedding import load_embedder
from flower_privsyn.generation.topics import load_topics
from tests.support.topics import SUBJECTS, documents

CTCL = Path(__file__).parents[2] / "baselines" / "ctcl"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Texts of six subjects, one of them twice."""
    texts = documents(180)
    file = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"text": text}) + "\n" for text in [*texts, texts[0]]]
    file.write_text("".join(rows))
    return file


def words(corpus: Path, output: Path, *more: str) -> list[str]:
    return ["topics", "--text", str(corpus), "--output", str(output), *more]


def test_topics_of_text_are_what_the_text_is_about(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "topics.npz"
    assert main(words(corpus, output, "--counts", "3", "6", "--seed", "1")) == 0
    said = capsys.readouterr().out
    made = load_topics(str(output))
    assert made.counts == (3, 6)
    assert {frozenset(found) for found in made.at(6).keywords} == {
        frozenset(subject.split()) for subject in SUBJECTS
    }
    # They fit the embedding model that a run has by default, and a text of a subject finds it.
    embedder = load_embedder("all-MiniLM-L6-v2")
    made.check_embedder(embedder, setting="topics")
    right = made.at(6).nearest(embedder.embed(["the doctor and the nurse of the hospital"]))
    assert "hospital" in made.at(6).keywords[int(right[0])]
    # Every text once, but those that are looked up.
    unique = list(dict.fromkeys(documents(180)))
    apart = [text for text in unique if _is_apart(text)]
    assert 0 < len(apart) < len(unique) / 10
    assert made.about == f"k-means of {len(unique) - len(apart)} passages of {corpus}"
    assert f"{len(unique) - len(apart)} passages are in topics\n" in said
    assert "100.0%" in said
    assert f"--set topics={output} and --set num-topics= 3, 6" in said


def test_the_same_seed_makes_the_same_topics(corpus: Path, tmp_path: Path) -> None:
    made = []
    for name in ("one.npz", "two.npz"):
        assert main(words(corpus, tmp_path / name, "--counts", "6", "--seed", "4")) == 0
        made.append(load_topics(str(tmp_path / name)).at(6))
    np.testing.assert_array_equal(made[0].centres, made[1].centres)
    assert made[0].keywords == made[1].keywords


def test_a_run_takes_them(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "topics.npz"
    assert main(words(corpus, output, "--counts", "3", "6")) == 0
    asked = ["check", str(CTCL), "--config", "cpu", "--set", f"topics={output}"]
    assert main([*asked, "--set", "num-topics=6"]) == 0
    assert "Ready: privsyn run" in capsys.readouterr().out
    assert main([*asked, "--set", "num-topics=7"]) == 2
    assert "num-topics must be one of 3, 6, which the topics have" in capsys.readouterr().err


def test_a_corpus_too_small_to_keep_a_document_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "few.jsonl"
    kept = [text for text in documents(60) if not _is_apart(text)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in kept))
    assert main(words(file, tmp_path / "topics.npz", "--counts", "6")) == 0
    said = capsys.readouterr().out
    assert "No document was kept apart that has two halves to be looked up." in said
    assert "hospital" in said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--counts", "400"), "--counts 400 needs at least 400 passages to cluster, and there are"),
        (("--counts", "6", "3"), "--counts must ascend, and there must be one, got 6 3"),
        (("--counts", "0"), "--counts must be a whole number of at least 1, got 0"),
        (("--max-tokens", "0"), "--max-tokens must be a whole number of at least 1, got 0"),
        (("--seed", "-1"), "--seed must be a whole number"),
        (("--output", "/nowhere/topics.npz"), "--output must be a file in a folder that is there"),
        (("--output", "/dev/null"), "--output must be a file in a folder that is there, got /dev/"),
        (("--output", "corpus.jsonl"), "--output corpus.jsonl is the corpus: name another file"),
        (("--text", "/nowhere.jsonl"), '--text = "/nowhere.jsonl"'),
    ],
)
def test_what_cannot_be_made_is_said_before_anything_is_embedded(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = corpus.read_bytes()
    sizes = () if "--counts" in more else ("--counts", "6")
    assert main(words(corpus, tmp_path / "topics.npz", *sizes, *more)) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "Embed passages" not in said
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus.jsonl"]
    assert corpus.read_bytes() == before
    assert Path("/dev/null").is_char_device()
