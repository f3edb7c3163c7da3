"""EmbeddingCache: many writers, a killed one, damage, and what is never computed twice."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_privsyn.client_apps.deal import check_deal
from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import (
    Embedder,
    EmbeddingCache,
    RecordStore,
    cached_embed,
    load_tokenizer,
)
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import quarantine

MODEL = "ab" * 32


def vectors_of(texts: Sequence[str], dimension: int = 16) -> NDArray[np.float32]:
    rows = [np.random.default_rng(list(text.encode())).normal(size=dimension) for text in texts]
    return np.asarray(rows, dtype=np.float32).reshape(len(texts), dimension)


class Counting:
    """An embedder that remembers what it was asked, but for the public text that comes first."""

    fingerprint = MODEL
    dimension = 16
    tokenizer = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        self.asked.extend(text for text in texts if text != quarantine.PROBE)
        if progress is not None:
            progress(len(texts))
        return vectors_of(texts)


def test_bits_survive_and_order_is_kept(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path / "deep" / "cache")
    texts = [f"text {number}" for number in range(5000)]
    vectors = vectors_of(texts)
    cache.put_many(MODEL, texts, vectors)
    wanted = ["unknown", *reversed(texts), "text 7", ""]
    got, found = EmbeddingCache(tmp_path / "deep" / "cache").get_many(MODEL, wanted, dimension=16)
    assert found.tolist() == [False] + [True] * 5001 + [False]
    assert got.dtype == np.float32
    assert (got[1:5001] == vectors[::-1]).all()
    assert (got[5001] == vectors[7]).all()
    assert not got[[0, -1]].any()
    assert len(cache) == 5000


def test_a_vector_of_another_length_is_computed_again(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    cache.put_many(MODEL, ["x"], np.ones((1, 4), np.float32))
    vectors, found = cache.get_many(MODEL, ["x"], dimension=16)
    assert not found.any()
    assert vectors.shape == (1, 16)
    embedder = Counting()
    assert (cached_embed(embedder, ["x"], cache) == vectors_of(["x"])).all()
    assert embedder.asked == ["x"]
    assert cache.get_many(MODEL, ["x"], dimension=16)[1].all()


def test_files_are_for_the_owner_alone_and_hold_no_text(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        cache = EmbeddingCache(tmp_path / "cache")
        connection = sqlite3.connect(cache.path)
        connection.execute("SELECT count(*) FROM embeddings")  # the log files stay while it is open
        cache.put_many(MODEL, ["a very private sentence"], np.ones((1, 4), np.float32))
        files = sorted((tmp_path / "cache").iterdir())
        assert len(files) == 3
        for file in files:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert b"private" not in file.read_bytes()
        connection.close()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def _deal(folder: Path) -> None:
    check_deal(folder, run_id=2**60, node_id=1, user_ids=["a"], max_nodes=1)


def _rows(folder: Path) -> None:
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    PublicRows.of("bundled", tokenizer=tokenizer, max_tokens=8, cache=folder, setting="public-text")


@pytest.mark.parametrize("use", [EmbeddingCache, RecordStore, _deal, _rows])
def test_a_directory_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[Path], object]
) -> None:
    """Who can write there can put other vectors, or other people, in the place of ours."""
    folder = tmp_path / "cache"
    folder.mkdir()
    for mode in (0o770, 0o707, 0o1777):
        folder.chmod(mode)
        with pytest.raises(DataError, match="cannot be"):
            use(folder)
    folder.chmod(0o755)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(DataError, match="cannot be"):
        use(folder)
    assert not list(folder.iterdir())


# ---- many processes ----------------------------------------------------------------------------

WRITER = """
import sys, numpy as np
from flower_privsyn.embedding import EmbeddingCache
directory, first, count, forever = sys.argv[1], *map(int, sys.argv[2:])
cache = EmbeddingCache(directory)
print("ready", flush=True)
number = first
while forever or number < first + count:
    texts = [f"text {i}" for i in range(number, number + 50)]
    vectors = np.arange(number, number + 50, dtype=np.float32)[:, None] * np.ones(8, np.float32)
    cache.put_many("model", texts, vectors)
    number += 50
"""


def writer(directory: Path, first: int, count: int, *, forever: bool = False) -> Any:
    arguments = [str(directory), str(first), str(count), str(int(forever))]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
    )


def check_all(cache: EmbeddingCache, numbers: range) -> None:
    vectors, found = cache.get_many("model", [f"text {i}" for i in numbers], dimension=8)
    assert found.all()
    assert (vectors == np.asarray(numbers, np.float32)[:, None]).all()


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    # Overlapping ranges: the same rows are written by two processes.
    processes = [writer(tmp_path / "cache", 500 * number, 1000) for number in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    cache = EmbeddingCache(tmp_path / "cache")
    assert len(cache) == 2500
    check_all(cache, range(2500))


def test_a_killed_writer_leaves_the_file_whole(tmp_path: Path) -> None:
    before = 0
    for attempt in range(3):
        victim = writer(tmp_path, 100_000 * attempt, 0, forever=True)
        assert victim.stdout.readline() == "ready\n"
        time.sleep(0.05 * (attempt + 1))  # somewhere in the middle of a write
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        cache = EmbeddingCache(tmp_path)
        check_all(cache, range(100_000 * attempt, 100_000 * attempt))
        stored = len(cache)
        assert (stored - before) % 50 == 0  # whole transactions
        cache.put_many("model", ["text 7"], np.full((1, 8), 7, np.float32))
        check_all(cache, range(7, 8))
        before = len(cache)  # where a machine is slow the victim may not have written it yet
        with sqlite3.connect(cache.path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
    assert not list(tmp_path.glob("*.damaged-*"))


# ---- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["not a database", "middle"])
def test_a_damaged_file_is_moved_aside_and_begun_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = EmbeddingCache(tmp_path)
    texts = [f"text {number}" for number in range(3000)]
    cache.put_many(MODEL, texts, vectors_of(texts))
    data = bytearray(cache.path.read_bytes())
    if damage == "not a database":
        data = bytearray(b"this was never a database " * 1000)
    else:
        data[4096 : len(data) - 4096] = b"\xa5" * (len(data) - 8192)
    cache.path.write_bytes(data)

    embedder = Counting()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            got = cached_embed(embedder, texts, EmbeddingCache(tmp_path))
            assert (got == vectors_of(texts)).all()
    assert len(embedder.asked) == 3000  # the second time from the new file
    aside = [path for path in tmp_path.glob("*.damaged-*") if "-wal" not in path.name]
    assert len(aside) == 1
    assert aside[0].read_bytes() == bytes(data)
    assert len(caplog.records) == 1
    assert "was damaged; it is kept as" in caplog.text


# ---- cached_embed ------------------------------------------------------------------------------


def test_nothing_is_computed_twice(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    embedder = Counting()
    assert isinstance(embedder, Embedder)
    counts: list[int] = []
    texts = ["a", "b", "a", "", "c", "a"]
    got = cached_embed(embedder, texts, cache, counts.append)
    assert (got == vectors_of(texts)).all()
    assert sorted(embedder.asked) == ["", "a", "b", "c"]
    assert sum(counts) == 6
    counts.clear()
    got = cached_embed(embedder, ["new", *texts], cache, counts.append)
    assert (got == vectors_of(["new", *texts])).all()
    assert len(embedder.asked) == 5
    assert counts == [6, 1]


@pytest.mark.parametrize("texts", [["a text"], []])
def test_a_model_that_fails_fails_whether_or_not_there_is_a_text(texts: list[str]) -> None:
    class Broken(Counting):
        def embed(
            self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
        ) -> NDArray[np.float32]:
            raise OSError("the accelerator is gone")

    with pytest.raises(OSError, match="accelerator"):
        cached_embed(Broken(), texts, None)


def test_a_killed_process_keeps_the_blocks_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flower_privsyn.embedding.cache._BLOCK", 10)

    class Dies(Counting):
        def embed(
            self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
        ) -> NDArray[np.float32]:
            if len(self.asked) >= 30:
                raise KeyboardInterrupt
            return super().embed(texts, progress=progress)

    texts = [f"text {number}" for number in range(100)]
    with pytest.raises(KeyboardInterrupt):
        cached_embed(Dies(), texts, EmbeddingCache(tmp_path))
    rest = Counting()
    cached_embed(rest, texts, EmbeddingCache(tmp_path))
    assert len(rest.asked) == 70


def test_a_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise DataError("Embedding cache cannot be written (SQLITE_FULL).")

    monkeypatch.setattr("flower_privsyn.embedding.cache._BLOCK", 2)
    monkeypatch.setattr(EmbeddingCache, "put_many", full)
    with caplog.at_level(logging.WARNING):
        got = cached_embed(Counting(), list("abcde"), EmbeddingCache(tmp_path))
    assert (got == vectors_of(list("abcde"))).all()
    assert len(caplog.records) == 1
    assert "SQLITE_FULL" in caplog.text


def test_an_embedder_of_another_shape_is_refused(tmp_path: Path) -> None:
    class Wrong(Counting):
        def embed(
            self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
        ) -> NDArray[np.float32]:
            return np.ones((len(texts), 3), np.float32)

    with pytest.raises(DataError, match=r"must return shape \(1, 16\), got \(1, 3\)"):
        cached_embed(Wrong(), ["x"], EmbeddingCache(tmp_path))
