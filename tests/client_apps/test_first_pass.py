"""The first pass leaves what a run looks for, and goes on where it was killed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_privsyn.cli import main
from flower_privsyn.client_apps import create_client_app
from flower_privsyn.client_apps import first_pass as module
from flower_privsyn.client_apps.first_pass import FirstPass, first_pass
from flower_privsyn.embedding import EmbeddingCache, RecordStore
from flower_privsyn.embedding.company import probe_texts
from flower_privsyn.errors import ConfigError, DataError, FederationError
from flower_privsyn.host.progress import NullProgress
from flower_privsyn.privacy import quarantine
from flower_privsyn.testing import HashEmbedder
from tests.support.answering import REQUEST, answer, context
from tests.support.federation import WORDS


class Broken(HashEmbedder):
    """Fails at the third block."""

    calls = 0

    def embed(self, texts, *, progress=None) -> NDArray[np.float32]:  # type: ignore[no-untyped-def]
        Broken.calls += not set(texts) <= {*probe_texts(), quarantine.PROBE}
        if Broken.calls == 3:
            raise KeyboardInterrupt
        return super().embed(texts, progress=progress)


class Useless(HashEmbedder):
    """Knows its name and nothing else: whatever asks it for a vector fails."""

    def embed(self, texts, *, progress=None) -> NDArray[np.float32]:  # type: ignore[no-untyped-def]
        raise AssertionError(f"{len(texts)} texts were not embedded before")


def hashing(name: str, precision: str) -> HashEmbedder:
    return HashEmbedder()


def broken(name: str, precision: str) -> HashEmbedder:
    return Broken()


def useless(name: str, precision: str) -> HashEmbedder:
    return Useless()


def deadly(name: str, precision: str) -> HashEmbedder:
    """Kills every process but the one it was called in first."""
    import multiprocessing
    import os
    import signal

    if multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return HashEmbedder()


def run(data: Path, cache: Path, load=hashing, **arguments: int) -> FirstPass:  # type: ignore[no-untyped-def]
    return first_pass(
        {"data": str(data)},
        REQUEST,
        load_embedder=load,
        directory=cache,
        progress=NullProgress(),
        **arguments,
    )


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_nodes_of_a_run_embed_nothing(
    population: Path,
    tmp_path: Path,
    nodes: int,
) -> None:
    done = run(population, tmp_path / "a", nodes=nodes)
    assert (done.users, done.nodes_ready) == (40, 0)
    assert done.embedded > 30
    ready = create_client_app(embedder=useless, cache_directory=tmp_path / "a")
    fresh = create_client_app(embedder=hashing, cache_directory=tmp_path / "b")
    for node in range(nodes):
        where = context(population, node, nodes)
        np.testing.assert_array_equal(answer(ready, where).total, answer(fresh, where).total)
    again = run(population, tmp_path / "a", load=useless, nodes=nodes)
    assert (again.embedded, again.nodes_ready) == (0, nodes)
    assert again.bytes_on_disk == done.bytes_on_disk


def test_as_the_run_will_ask(population: Path, tmp_path: Path) -> None:
    """Another seed caps other samples and holds other users out."""
    request = replace(REQUEST, seed=5, held_out_fraction=0.3)
    done = first_pass(
        {"data": str(population)},
        request,
        load_embedder=hashing,
        directory=tmp_path,
        progress=NullProgress(),
        nodes=4,
    )
    assert done.users < 40
    other = run(population, tmp_path, nodes=4)
    assert other.nodes_ready == 0


def test_goes_on_where_it_was_stopped(
    population: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 16)
    monkeypatch.setattr(Broken, "calls", 0)
    with pytest.raises(KeyboardInterrupt):
        run(population, tmp_path / "a", load=broken)
    assert len(EmbeddingCache(tmp_path / "a")) == 32
    whole = run(population, tmp_path / "b")
    rest = run(population, tmp_path / "a")
    assert rest.embedded == whole.embedded - 32


def test_in_processes(tmp_path: Path) -> None:
    data = tmp_path / "users.jsonl"
    rows = [
        {"client_id": n % 9, "text": f"{WORDS[n % 25]} {WORDS[n % 24]} {n}"} for n in range(1300)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = replace(REQUEST, max_samples=0)
    results = []
    for processes in (1, 2):
        cache = tmp_path / str(processes)
        done = first_pass(
            {"data": str(data)},
            request,
            load_embedder=hashing,
            directory=cache,
            progress=NullProgress(),
            processes=processes,
        )
        assert (done.samples, done.embedded) == (1300, 1300)
        (entry,) = (cache / "records").glob("*.arrow")
        stored = RecordStore(cache).find(entry.stem)
        assert stored is not None
        results.append((entry.name, stored.records))
    assert results[0][0] == results[1][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_a_process_that_is_killed_is_named(tmp_path: Path) -> None:
    data = tmp_path / "users.jsonl"
    rows = [{"client_id": n, "text": f"court tax judge {n}"} for n in range(1100)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(FederationError, match="goes on"):
        run(data, tmp_path / "cache", load=deadly, processes=2)


@pytest.mark.parametrize("arguments", [{"nodes": 0}, {"processes": 0}])
def test_refused(tmp_path: Path, arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        run(tmp_path / "none.jsonl", tmp_path, **arguments)
    with pytest.raises(DataError, match="does not exist"):
        run(tmp_path / "none.jsonl", tmp_path)


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real model, for a population that another command has written."""
    monkeypatch.setenv("PRIVSYN_CACHE", str(tmp_path / "cache"))
    people = tmp_path / "population.parquet"
    words = ["simulate", "--users", "4", "--samples-per-user", "2", "--output", str(people)]
    assert main(words) == 0
    assert "4 users, 8 texts" in capsys.readouterr().out
    embed = ["embed", "--data", str(people), "--nodes", "2", "--max-samples", "2"]
    assert main(embed) == 0
    assert "4 users on 2 nodes: 8 texts embedded now, 0 of" in capsys.readouterr().out
    assert main(embed) == 0
    assert "0 texts embedded now, 2 of the nodes were ready" in capsys.readouterr().out
    app = Path(__file__).parents[2] / "examples" / "own-data"
    assert main(["embed", "--app", str(app), "--set", f"data={people}", "--seed", "0"]) == 0
    assert "on 2 nodes: " in capsys.readouterr().out
    assert main(["embed", "--data", str(people), "--set", "seed=1"]) == 2
    assert "--app" in capsys.readouterr().err
    assert main(["embed"]) == 2
    said = "There is no text to embed: name a file of users, a folder or a data set with --data."
    assert said in capsys.readouterr().err
    assert main(["embed", "--data", str(people), "--max-tokens", "0"]) == 2
    assert "max-tokens" in capsys.readouterr().err
