"""The same sums whether records are kept on the disk, in memory, or made in another process."""

from __future__ import annotations

import logging
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_privsyn.client_apps import records
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.messages import wire
from flower_privsyn.privacy import FullParticipation, PoissonSampling, Sampling
from flower_privsyn.testing import HashEmbedder, flower_identity, hash_embedder
from tests.support.answering import REQUEST, RUN, answer, context

LOADS: list[int] = []


def counting_embedder(name: str, precision: str) -> HashEmbedder:
    LOADS.append(1)
    return HashEmbedder()


def other_embedder(name: str, precision: str) -> HashEmbedder:
    return HashEmbedder(dimension=16)


def other_users(where: Context) -> Users:
    return Users.from_rows([("somebody", "court tax")])


def prepare(app: ClientApp, where: Context, data: wire.DataRequest = REQUEST) -> Message:
    return app(Message(wire.pack_prepare(data), where.node_id, wire.PREPARE), where)


def entries(directory: Path) -> tuple[int, int]:
    """How many nodes of runs the store holds, and how many blocks of texts."""
    names = [path.stem for path in (directory / "records").glob("*.arrow")]
    return sum(len(name) == 32 for name in names), sum(len(name) == 64 for name in names)


def in_another_process(directory: Path, where: list[Context]) -> tuple[list[Any], int]:
    """The same of a process that starts now."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_answers, (directory, where))


def _answers(directory: Path, where: list[Context]) -> tuple[list[Any], int]:
    """What nodes answer that hold nothing in memory, and how often a model was loaded."""
    LOADS.clear()
    with flower_identity():
        app = create_client_app(embedder=counting_embedder, cache_directory=directory)
        return [answer(app, each).total.tolist() for each in where], len(LOADS)


class TestSums:
    @pytest.mark.parametrize("sampling", [FullParticipation(), PoissonSampling(0.5)])
    def test_with_and_without_the_store(
        self, population: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
    ) -> None:
        nodes = [context(population, node) for node in range(4)]
        stored = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "a")
        with_store = [answer(stored, where, sampling) for where in nodes]
        assert entries(tmp_path / "a") == (4, 4)
        monkeypatch.setenv("PRIVSYN_RECORDS_GIB", "0")
        plain = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "b")
        without = [answer(plain, where, sampling) for where in nodes]
        assert not (tmp_path / "b" / "records").exists()
        for one, other in zip(with_store, without, strict=True):
            np.testing.assert_array_equal(one.total, other.total)
            assert one.num_users == other.num_users
        assert sum(one.total.sum() for one in with_store) > 20

    def test_however_users_are_dealt(self, population: Path, tmp_path: Path) -> None:
        sums = []
        for nodes in (1, 2, 60):
            app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path)
            sums.append(
                sum(
                    answer(app, context(population, node, nodes, RUN + nodes)).total
                    for node in range(nodes)
                )
            )
        for other in sums[1:]:
            np.testing.assert_array_equal(sums[0], other)

    def test_a_second_process_reads_neither_text_nor_model(
        self, population: Path, tmp_path: Path
    ) -> None:
        cache, nodes = tmp_path / "cache", [context(population, node) for node in range(4)]
        first, models = in_another_process(cache, nodes)
        assert models == 1
        population.unlink()
        again, models = in_another_process(cache, nodes)
        assert again == first
        assert models == 0

    def test_another_run_reads_the_text_and_finds_the_records(
        self, population: Path, tmp_path: Path
    ) -> None:
        cache = tmp_path / "cache"
        first, _ = _answers(cache, [context(population)])
        again, models = _answers(cache, [context(population, run=RUN + 1)])
        assert (again, models) == (first, 1)
        assert entries(cache) == (2, 1)
        rows = population.read_text().splitlines()
        population.write_text("\n".join(rows[:-40]) + "\n")
        changed, _ = _answers(cache, [context(population, run=RUN + 2)])
        assert changed != first

    @pytest.mark.parametrize("change", [{"max_tokens": 4}, {"max_samples": 1}, {"seed": 5}])
    def test_text_that_is_cut_otherwise_makes_other_records(
        self, population: Path, tmp_path: Path, change: dict[str, int]
    ) -> None:
        for run, request in enumerate((REQUEST, replace(REQUEST, **change), REQUEST)):
            app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "cache")
            prepare(app, context(population, run=RUN + run), request)
        assert entries(tmp_path / "cache") == (3, 2)


class TestNames:
    """Whatever settles whose text it is has to be in a name, and nothing else may lead to it."""

    def test_of_another_run_node_number_of_nodes_or_file(
        self, population: Path, tmp_path: Path
    ) -> None:
        cache, other = tmp_path / "cache", tmp_path / "other.jsonl"
        other.write_text("".join(population.read_text().splitlines(keepends=True)[:3]))
        app = create_client_app(embedder=hash_embedder, cache_directory=cache)
        for where in (
            context(population),
            context(population, run=RUN + 1),
            context(population, node=1),
            context(population, nodes=5),
            context(other),
        ):
            prepare(app, where)
        assert entries(cache)[0] == 5

    @pytest.mark.parametrize("same_process", [False, True])
    def test_of_another_request(self, population: Path, tmp_path: Path, same_process: bool) -> None:
        cache = tmp_path / "cache"
        sizes = []
        app = create_client_app(embedder=hash_embedder, cache_directory=cache)
        for fraction in (0.0, 0.5, 0.0):
            if not same_process:
                app = create_client_app(embedder=hash_embedder, cache_directory=cache)
            reply = prepare(
                app, context(population, nodes=1), replace(REQUEST, held_out_fraction=fraction)
            )
            sizes.append(wire.unpack_roster(reply).num_users)
        assert sizes[0] == sizes[2] == 40
        assert 8 < sizes[1] < 32
        assert entries(cache)[0] == 2

    def test_not_kept_in_memory_for_what_a_file_was(self, population: Path, tmp_path: Path) -> None:
        """Who was taken out of it between two runs of one number is in the first alone."""
        app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "cache")
        where = context(population, nodes=1, run=1)
        assert wire.unpack_roster(prepare(app, where)).num_users == 40
        population.write_text("".join(population.read_text().splitlines(keepends=True)[:3]))
        assert answer(app, where).num_users == 40
        assert wire.unpack_roster(prepare(app, where)).num_users == 3
        assert answer(app, where).num_users == 3

    def test_not_for_a_run_id_that_somebody_wrote_down(
        self, population: Path, tmp_path: Path
    ) -> None:
        cache = tmp_path / "cache"
        app = create_client_app(embedder=hash_embedder, cache_directory=cache)
        prepare(app, context(population, run=1))
        assert entries(cache)[0] == 0


class TestMemory:
    def test_records_are_looked_at_a_part_at_a_time(
        self, population: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        where = context(population, nodes=1)
        app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path)
        wanted = [answer(app, where, sampling) for sampling in (None, PoissonSampling(0.5))]
        monkeypatch.setattr(records, "_PART_USERS", 7)
        again = [answer(app, where, sampling) for sampling in (None, PoissonSampling(0.5))]
        for one, other in zip(wanted, again, strict=True):
            np.testing.assert_array_equal(one.total, other.total)
            assert one.num_users == other.num_users

    def test_what_was_read_last_is_not_taken_for_another_file(
        self, population: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other.jsonl"
        lines = population.read_text().splitlines(keepends=True)
        other.write_text("".join(lines[:3]))
        app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path)
        sizes = []
        for data, run in ((population, RUN + 60), (other, RUN + 60), (other, 1), (population, 1)):
            where = context(data, nodes=1, run=run)
            sizes.append(wire.unpack_roster(prepare(app, where)).num_users)
        # Nor for what the same file held in an earlier run of that name.
        population.write_text("".join(lines[:5]))
        app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path)
        reply = prepare(app, context(population, nodes=1, run=1))
        assert [*sizes, wire.unpack_roster(reply).num_users] == [40, 3, 3, 40, 5]


class TestWithoutAStore:
    def test_a_cache_that_cannot_be_written_costs_a_warning(
        self, population: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        app = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "file")
        with caplog.at_level(logging.WARNING, logger="flower_privsyn.client"):
            total = answer(app, context(population)).total
        assert "own memory" in caplog.text
        good = create_client_app(embedder=hash_embedder, cache_directory=tmp_path / "good")
        np.testing.assert_array_equal(total, answer(good, context(population)).total)
