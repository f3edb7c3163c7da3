"""Public documents by name: files, folders, data sets in a folder and of the hub, and how many."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from pathlib import Path

import datasets
import pytest

from flower_privsyn.data import public_corpus, public_texts
from flower_privsyn.data.public_corpus import PublicCorpus, public_documents
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import MissingExtraError

README = """---
configs:
- config_name: en
  data_files:
  - split: train
    path: en/c4-train.*.json.gz
  - split: validation
    path: en/c4-validation.*.json.gz
- config_name: realnewslike
  data_files:
  - split: train
    path: realnewslike/c4-train.*.json.gz
---
"""
SHARDS = {
    "en/c4-train.00000-of-00002.json.gz": ["one", "two"],
    "en/c4-train.00001-of-00002.json.gz": ["three", "four"],
    "en/c4-validation.00000-of-00001.json.gz": ["held", "out"],
    "realnewslike/c4-train.00000-of-00001.json.gz": ["the news", "more news"],
}


@pytest.fixture(scope="module")
def c4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of a small data set with the folders, files and rows of allenai/c4."""
    folder = tmp_path_factory.mktemp("clones") / "c4"
    for name, texts in SHARDS.items():
        rows = [
            {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": f"https://a.b/{text}"}
            for text in texts
        ]
        content = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(content.encode()))
    (folder / "README.md").write_text(README)
    return folder


def found(source: str | Path) -> list[str]:
    return list(PublicCorpus.find(source, setting="public-text").documents())


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("/en", ["one", "two", "three", "four", "held", "out"]),
        ("/en/c4-train.00001-of-00002.json.gz", ["three", "four"]),
        ("/en/c4-train.00001-of-00002.json.gz[:1]", ["three"]),
        ("/realnewslike[:99]", ["the news", "more news"]),
    ],
)
def test_a_clone_of_c4(name: str, texts: list[str], c4: Path) -> None:
    source = f"{c4}{name}"
    assert found(source) == texts
    assert public_documents(source, setting="--text") == texts
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    assert public_texts(source, tokenizer=tokenizer) == texts


def test_of_a_large_corpus_evenly_fewer_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, texts = tmp_path / "texts.jsonl", [f"document {number:03}" for number in range(100)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    assert public_texts(str(file), tokenizer=tokenizer) == texts
    monkeypatch.setattr(public_corpus, "MOST_PUBLIC_CHARACTERS", 30 * len(texts[0]))
    assert public_texts(str(file), tokenizer=tokenizer) == texts  # too few to leave some out
    monkeypatch.setattr(public_corpus, "_FEW_DOCUMENTS", 8)
    assert public_texts(str(file), tokenizer=tokenizer) == texts[::4]
    monkeypatch.setattr(public_corpus, "MOST_PUBLIC_CHARACTERS", 1)
    assert public_texts(str(file), tokenizer=tokenizer) == texts[::16]


def test_data_sets_and_tables_in_a_folder(tmp_path: Path) -> None:
    texts = datasets.Dataset.from_dict({"text": ["one", "two"], "url": ["a", "b"]})
    datasets.DatasetDict({"train": texts}).save_to_disk(tmp_path / "saved")
    (tmp_path / "tables").mkdir()
    texts.to_parquet(tmp_path / "tables" / "train-00000.parquet")
    assert found(tmp_path / "saved") == found(f"{tmp_path}/saved/train") == ["one", "two"]
    assert found(tmp_path / "tables") == ["one", "two"]
    assert found(f"{tmp_path}/tables/train-00000.parquet[:1]") == ["one"]


def test_c4_by_its_name_is_streamed(c4: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a network, with the clone in place of the hub."""
    asked = []
    load = datasets.load_dataset

    def from_clone(name: str, config: str | None, **options: object) -> object:
        asked.append((name, config, options["streaming"]))
        return load(str(c4), config, **options)

    monkeypatch.setattr(datasets, "load_dataset", from_clone)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    documents = PublicCorpus.find("allenai/c4:en", setting="public-text").documents()
    assert list(itertools.islice(documents, 3)) == ["one", "two", "three"]
    assert found("allenai/c4:realnewslike:train[:1]") == ["the news"]
    assert asked == [("allenai/c4", "en", True), ("allenai/c4", "realnewslike", True)]


def test_a_data_set_says_which_extra_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r'^public-text = "a/b": .*\[client\]'):
        public_documents("a/b", setting="public-text")


def test_rows_are_those_of_the_name_and_kept_for_their_owner(c4: Path, tmp_path: Path) -> None:
    tokenizer, _ = load_tokenizer("privsyn-tiny")

    def rows(name: str) -> PublicRows:
        cache = tmp_path / "cache"
        return PublicRows.of(f"{c4}{name}", tokenizer=tokenizer, max_tokens=8, cache=cache)

    all_rows, first = rows("/en"), rows("/en[:2]")
    assert [all_rows.text_of(index) for index in range(4)] == ["one", "two", "three", "four"]
    assert len(first) == 2
    assert len({all_rows.folder, first.folder, rows("/realnewslike").folder}) == 3
    for folder in (tmp_path / "cache", tmp_path / "cache" / "public-rows", first.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_what_a_corpus_of_the_hub_was_is_kept_by_its_name(
    c4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    monkeypatch.setattr(
        public_corpus.data_sets, "from_hub", lambda *_, **__: [{"text": "streamed once"}]
    )

    def rows() -> PublicRows:
        return PublicRows.of("allenai/c4:en", tokenizer=tokenizer, max_tokens=8, cache=tmp_path)

    assert rows().text_of(0) == "streamed once"
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rows().text_of(0) == "streamed once"
