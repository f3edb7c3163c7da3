"""Data sets of the Hugging Face library, found by name, configuration and split; partitions."""

from __future__ import annotations

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flower_privsyn.cli import main
from flower_privsyn.data import load_configured, load_users
from flower_privsyn.errors import ConfigError, DataError, MissingExtraError

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
        (
            "owner/news",
            "owner/news has several configurations: write owner/news:CONFIG:SPLIT with one of "
            "mail, press.",
        ),
        (
            "owner/news:letters",
            "owner/news has no configuration 'letters': write owner/news:CONFIG:SPLIT with one of "
            "mail, press.",
        ),
        (
            "owner/news:press:validation",
            "owner/news:press has no split 'validation'; its splits are 'train', 'test'.",
        ),
        (
            "owner/olds:press:train",
            "owner/olds:press:train is neither a file nor in the data set cache, and the hub "
            "cannot be reached (HF_HUB_OFFLINE=1).",
        ),
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
    with pytest.raises(DataError) as refused:
        load_users(name)
    assert str(refused.value) == says
    assert capsys.readouterr().err == ""


def test_a_data_set_in_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Relative to where the command was typed, which is not where a node runs.
    monkeypatch.setenv("PRIVSYN_WORKING_DIRECTORY", str(folder.parent))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert load_configured({"data": "news:press:test"}).texts == ["three", "four"]
    assert load_users(f"{folder}:mail").texts == ["mail", "more"]
    assert list(tmp_path.iterdir()) == []  # private text is copied nowhere
    for name, says in (
        ("news::train", "news has several configurations"),
        ("news:press:more", "news:press has no split 'more'; its splits are 'train', 'test'."),
    ):
        with pytest.raises(DataError, match=says):
            load_configured({"data": name})


def test_a_split_of_a_saved_data_set(tmp_path: Path) -> None:
    """By the words that name one of the hub."""
    saved = tmp_path / "saved"
    made = {
        split: datasets.Dataset.from_list([{"client_id": "ann", "text": split}] * 2)
        for split in ("train", "test")
    }
    datasets.DatasetDict(made).save_to_disk(saved)
    for name, split in (("", "train"), ("::test", "test"), (":default:test", "test")):
        assert load_users(f"{saved}{name}").texts == [split] * 2
    with pytest.raises(DataError, match="has no configurations, got 'other': name .*::test"):
        load_users(f"{saved}:other:test")
    with pytest.raises(DataError, match="valid"):
        load_users(f"{saved}::valid")


def test_a_folder_without_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no data set with the configuration 'default'"):
        load_users(f"{tmp_path}::train")


# ---- partitions ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unowned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved data set that does not say whose its rows are."""
    folder = tmp_path_factory.mktemp("saved") / "news"
    rows = [{"text": f"text {n}", "label": n % 4} for n in range(40)]
    datasets.Dataset.from_list(rows).save_to_disk(folder)
    return folder


@pytest.mark.parametrize(
    ("partitioner", "sizes"),
    [
        ("IidPartitioner(num_partitions=4)", [10] * 4),
        ("LinearPartitioner(num_partitions=4)", [4, 8, 12, 16]),
        ("SizePartitioner(partition_sizes=[30, 10])", [30, 10]),
        ("NaturalIdPartitioner(partition_by='label')", [10] * 4),
    ],
)
def test_partitions_are_users(unowned: Path, partitioner: str, sizes: list[int]) -> None:
    users = load_configured({"data": str(unowned), "data-partitioner": partitioner}, strict=True)
    assert users.user_ids == tuple(f"partition {n}" for n in range(len(sizes)))
    assert [users.owners.tolist().count(n) for n in range(len(sizes))] == sizes
    assert sorted(users.texts) == sorted(f"text {n}" for n in range(40))


def test_partitions_are_those_of_the_library(unowned: Path) -> None:
    from flwr_datasets.partitioner import DirichletPartitioner

    arguments = "num_partitions=5, partition_by='label', alpha=0.5, min_partition_size=1"
    users = load_users(unowned, data_partitioner=f"DirichletPartitioner({arguments})")
    theirs = DirichletPartitioner(5, "label", 0.5, min_partition_size=1)
    theirs.dataset = datasets.load_from_disk(str(unowned))
    for number in range(5):
        own = [users.texts[row] for row in (users.owners == number).nonzero()[0]]
        assert own == theirs.load_partition(number)["text"][:]


def test_an_empty_partition_is_a_user_too(tmp_path: Path) -> None:
    table = pa.table({"text": list("abcdef"), "label": [0] * 6, "date": ["2025-01-01"] * 6})
    pq.write_table(table, tmp_path / "u.parquet")
    arguments = "num_partitions=3, partition_by='label', alpha=0.01, min_partition_size=0"
    users = load_users(
        tmp_path / "u.parquet", data_partitioner=f"DirichletPartitioner({arguments})"
    )
    assert sorted(users.user_ids) == ["partition 0", "partition 1", "partition 2"]
    assert sorted(users.texts) == list("abcdef")
    assert len(set(users.owners.tolist())) < 3
    assert users.dates is not None


@pytest.mark.parametrize(
    ("partitioner", "says"),
    [
        ("IidPartitioner(2)", "data-partitioner must be a class of flwr_datasets.partitioner with"),
        ("os.system('ls')", "data-partitioner must be a class"),
        ("IidPartitioner(num_partitions=__import__('os'))", "data-partitioner must be a class"),
        ("a b", "data-partitioner must be a class"),
        ("IdPartitioner(num_partitions=2)", "there is no 'IdPartitioner'; there are Continuous"),
        ("VerticalSizePartitioner(partition_sizes=[1])", "there is no 'VerticalSizePartitioner'"),
        ("IidPartitioner", "missing 1 required positional argument: 'num_partitions'."),
        ("IidPartitioner(partitions=2)", "unexpected keyword argument 'partitions'."),
        ("IidPartitioner(num_partitions=0)", "The number of partitions must be greater than zero"),
        (
            "IidPartitioner(num_partitions=99)",
            "data-partitioner = IidPartitioner(num_partitions=9",
        ),
        ("NaturalIdPartitioner(partition_by='lable')", "data-partitioner = NaturalIdPartitioner("),
    ],
)
def test_a_partitioner_that_is_none_is_named(unowned: Path, partitioner: str, says: str) -> None:
    with pytest.raises((ConfigError, DataError)) as refused:
        load_users(unowned, data_partitioner=partitioner)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_partitioner_quotes_no_text_and_names_columns(unowned: Path) -> None:
    options = "num_partitions=4, strictness=0.5"
    with pytest.raises(ConfigError, match=r"cannot be parted so \(ValueError\)") as refused:
        load_users(
            unowned, data_partitioner=f"ContinuousPartitioner({options}, partition_by='text')"
        )
    assert "text 0" not in str(refused.value)
    options = "num_partitions=99, partition_by='label', alpha=0.5"
    with pytest.raises(ConfigError, match="The number of partitions needs to be smaller than"):
        load_users(unowned, data_partitioner=f"DirichletPartitioner({options})")
    options = "num_partitions=4, strictness=0.5"
    with pytest.raises(ConfigError, match="has no column 'lable' .did you mean 'label'"):
        load_users(
            unowned, data_partitioner=f"ContinuousPartitioner({options}, partition_by='lable')"
        )


def test_a_partitioner_without_a_seed_is_refused(unowned: Path) -> None:
    """Every process of a node would part the rows otherwise: no user is the same twice."""
    arguments = "num_partitions=4, partition_by='label', alpha=0.5, seed=None"
    with pytest.raises(ConfigError, match="no user would be the same in two rounds"):
        load_users(unowned, data_partitioner=f"DirichletPartitioner({arguments})")


def test_data_that_say_whose_they_are_have_no_partitions(tmp_path: Path) -> None:
    rows = [{"client_id": "a", "text": "x"}, {"client_id": "b", "text": "y"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    options = {"data_partitioner": "IidPartitioner(num_partitions=2)"}
    with pytest.raises(DataError, match="has a column 'client_id', which says who a user is"):
        load_users(tmp_path / "saved", **options)
    with pytest.raises(ConfigError, match="data-partitioner makes many users, and user-id one"):
        load_users(tmp_path / "saved", **options, user_id="me")


def test_a_partitioner_needs_its_library(monkeypatch: pytest.MonkeyPatch, unowned: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(MissingExtraError, match="pip install flwr-datasets"):
        load_users(unowned, data_partitioner="IidPartitioner(num_partitions=2)")


def test_a_run_reads_partitions(
    unowned: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Path(__file__).parents[2] / "examples" / "own-data"
    for partitions, says in ((1, "the text of one user"), (4, "already holds a run")):
        (tmp_path / "taken").mkdir(exist_ok=True)
        (tmp_path / "taken" / "config.json").write_text("{}")
        partitioner = f"data-partitioner=IidPartitioner(num_partitions={partitions})"
        words = ["run", str(app), "--run-dir", "taken", "--set", f"data={unowned}"]
        assert main([*words, "--set", partitioner]) == 2
        assert says in capsys.readouterr().err
