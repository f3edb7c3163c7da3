"""The example whose users are partitions of a data set: offline, from a folder."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import datasets
import pytest
from flwr.app import Context, RecordDict
from flwr_datasets.partitioner import DirichletPartitioner

from flower_privsyn.cli import main
from flower_privsyn.run import RunDirectory

APP = Path(__file__).parents[2] / "examples" / "flower-datasets" / "parted"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    spec = importlib.util.spec_from_file_location("parted_client_app", APP / "client_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_node(node: int, nodes: int, num_users: int, dataset: Path | str) -> Context:
    places = {"partition-id": node, "num-partitions": nodes}
    settings = {"num-users": num_users, "dataset": str(dataset)}
    return Context(run_id=1, node_id=5, node_config=places, state=RecordDict(), run_config=settings)


def test_users_are_the_librarys_partitions_each_on_one_node(
    client: ModuleType, tmp_path: Path
) -> None:
    rows = [{"text": f"text {n}", "label": "abcd"[n % 4]} for n in range(40)]
    (tmp_path / "news").mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "news" / "train.jsonl").write_text(lines)
    theirs = DirichletPartitioner(25, "label", alpha=1.0, min_partition_size=0)
    theirs.dataset = datasets.Dataset.from_list(rows).shuffle(seed=42)
    expected = {f"partition {n}": theirs.load_partition(n)["text"][:] for n in range(25)}
    assert [] in expected.values()  # and such a user is on the roster, too

    found: dict[str, list[str]] = {}
    for node in range(3):
        users = client.load(of_node(node, 3, 25, tmp_path / "news"))
        for number, name in enumerate(users.user_ids):
            assert name not in found
            found[name] = [users.texts[row] for row in (users.owners == number).nonzero()[0]]
    assert found == expected


def test_the_apps_own_sample(client: ModuleType) -> None:
    users = [client.load(of_node(node, 2, 80, "")) for node in range(2)]
    assert [len(one.user_ids) for one in users] == [40, 40]
    assert sum(len(one.texts) for one in users) == 240


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_app_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    short = ["--set", "num-rounds=2", "--set", "num-candidates=16", "--set", "synthetic-samples=4"]
    words = ["run", str(APP.parent), "--run-dir", str(tmp_path / "run"), *short]
    assert main(words) == 0
    run = RunDirectory.open(tmp_path / "run")
    assert run.state["status"] == "finished"
    assert len(run.synthetic_jsonl.read_text().splitlines()) == 4
