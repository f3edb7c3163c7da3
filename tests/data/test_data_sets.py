"""Data sets of the Hugging Face library, found by name, configuration and split."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from flower_privsyn.data import load_configured, load_users
from flower_privsyn.errors import DataError

README = """---
configs:
- config_name: press
  data_files:
  - split: train
    path: press/train.csv
  - split: test
    path: press/test.csv
- config_name: mail
  data_files: mail.csv
---
"""
FILES = {
    "README.md": README,
    "press/train.csv": "client_id,text,label\na,one,0\nb,two,1\n",
    "press/test.csv": "client_id,text,label\nc,three,0\nd,four,1\n",
    "mail.csv": "client_id,text\nm,mail\nn,more\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of a data set of the hub."""
    folder = tmp_path_factory.mktemp("clones") / "news"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def cache(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's cache after owner/news was downloaded."""
    cache = tmp_path_factory.mktemp("cache")
    datasets.disable_progress_bars()
    for config in ("press", "mail"):
        datasets.load_dataset(str(folder), config, cache_dir=str(cache))
    (cache / "news").rename(cache / "owner___news")
    return cache


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("owner/news:press", ["one", "two"]),
        ("owner/news:press:test", ["three", "four"]),
        ("owner/news:mail:train", ["mail", "more"]),
    ],
)
def test_a_data_set_of_the_hub(
    name: str, texts: list[str], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    assert load_users(name).texts == texts


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("owner/news", "owner/name:CONFIG:SPLIT .* mail, press"),
        ("owner/news:letters", "letters"),
        ("owner/news:press:validation", "'validation'"),
        ("owner/olds:press:train", "owner/olds"),
    ],
)
def test_what_the_hub_does_not_have_is_named(
    name: str,
    says: str,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
    with pytest.raises(DataError, match=says):
        load_users(name)
    assert capsys.readouterr().err == ""


def test_a_saved_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several splits `train`, and each by its folder, relative to where a command was typed."""
    made = {
        split: datasets.Dataset.from_list([{"client_id": "ann", "text": split}] * 2)
        for split in ("train", "test")
    }
    datasets.DatasetDict(made).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"test": made["test"]}).save_to_disk(tmp_path / "other")
    monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(tmp_path))
    monkeypatch.chdir("/")
    for name, split in (("saved", "train"), ("saved/test", "test")):
        assert load_configured({"data": name}).texts == [split] * 2
        assert load_users(str(tmp_path / name)).texts == [split] * 2
    with pytest.raises(DataError, match="no split 'train'; its splits are 'test'"):
        load_configured({"data": "other"})
