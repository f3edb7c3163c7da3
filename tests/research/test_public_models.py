"""The pipeline of the bundled models: what it refuses to train on, and its sizes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "research" / "public_models"
MODELS = ("privsyn-lm", "privsyn-mlm", "privsyn-tiny", "privsyn-lstm")
TOPICS = {
    "wikipedia": "river mountain village church railway station county district bridge harbour",
    "openstax": "cell protein energy reaction membrane electron molecule tissue gene enzyme",
    "standardebooks": "house morning window lady letter garden evening carriage silence heart",
    "usgov": "treaty congress secretary policy agency report foreign president delegation law",
    "docs": "function module version server command package error thread compiler library",
}
GLUE = "the of and in to a was with for on that by it from as at which were had not".split()
PRIVATE = "senator witness hearing question amendment budget committee chairman gentleman vote"


@pytest.fixture(scope="module", autouse=True)
def _scripts() -> Iterator[None]:
    """Import the scripts as they import one another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield


def _text(words: str, length: int, random: np.random.Generator) -> str:
    both = [words.split(), GLUE]
    picked = [both[i % 2][random.integers(len(both[i % 2]))] for i in range(length)]
    return " ".join(picked).capitalize() + "."


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row) + "\n")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A public corpus of 200 documents and a private one of 60 persons."""
    folder = tmp_path_factory.mktemp("corpora")
    random = np.random.default_rng(0)
    names = list(TOPICS)
    _write(
        folder / "public-00000.jsonl.gz",
        [
            {
                "source": f"owner/{names[i % 5]}",
                "group": names[i % 5],
                "doc_id": f"work-{i}#1",
                "text": "\n\n".join(_text(TOPICS[names[i % 5]], 300, random) for _ in range(3)),
            }
            for i in range(200)
        ],
    )
    _write(
        folder / "private.jsonl.gz",
        [{"client_id": f"p{i}", "text": _text(PRIVATE, 90, random)} for i in range(60)],
    )
    work = tmp_path_factory.mktemp("work")
    return {"corpus": folder, "work": work, "output": work / "models", "curves": work / "c.png"}


def test_a_private_document_in_the_training_text_stops_the_run(folders: dict[str, Path]) -> None:
    from private import PrivateCorpus, prove_unseen

    random = np.random.default_rng(5)
    public = [_text(TOPICS["docs"], 300, random) for _ in range(4)]
    private = PrivateCorpus.parse(f"speech={folders['corpus']}/private.jsonl.gz")
    mine = next(private.texts())
    assert prove_unseen(public, [private])["speech"]["windows_seen"] == 0
    # Case and layout are not what makes a text another one.
    with pytest.raises(SystemExit, match=r"'speech' is not unseen: 1 of its documents"):
        prove_unseen([*public, mine.upper().replace(" ", "\n")], [private])
    words = mine.split()
    with pytest.raises(SystemExit, match=r"0 of its documents .* of 1 at least half"):
        prove_unseen([*public, "before " + " ".join(words[: len(words) * 2 // 3])], [private])
    # A passing quotation is counted, and no more.
    quoted = prove_unseen([*public, "before " + " ".join(words[:15]) + " after"], [private])
    assert quoted["speech"]["windows_seen"] == 3
    assert quoted["speech"]["documents_with_a_window"] == 1
    assert quoted["speech"]["windows"] == 60 * (90 - 12)


def test_the_sizes_fit_the_package() -> None:
    from networks import RECIPES, build

    assert tuple(recipe.name for recipe in RECIPES) == MODELS
    parameters = [sum(p.numel() for p in build(recipe).parameters()) for recipe in RECIPES]
    assert 2 * sum(parameters) < 40 * 2**20
    assert sum(recipe.share for recipe in RECIPES) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--private", "nofile"], "NAME=FILES"),
        (["--private", "speech=/nowhere/*.jsonl"], "no file matches"),
        (["--only", "privsyn-huge"], "there is no such model"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments: list[str], message: str) -> None:
    from train import main

    with pytest.raises(SystemExit, match=message):
        main(["--stage", "train", *arguments])
