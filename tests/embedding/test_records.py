"""Records on the disk: read as they were written, by every process, or not at all."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from flower_privsyn.data.public_rows import PublicRows
from flower_privsyn.embedding import load_tokenizer, records
from flower_privsyn.embedding.records import RecordStore, StoredRecords, content_key, embed_texts
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import skipping
from flower_privsyn.testing import HashEmbedder
from tests.support.records import IDS, KEY, put, put_many

OTHER, THIRD = "b" * 64, "c" * 64


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def damaged(content: bytes, kind: str) -> bytes:
    """What stands in place of an entry: less than it, or an Arrow file of something else."""
    if kind in ("empty", "cut"):
        return {"empty": b"", "cut": content[: len(content) // 2]}[kind]
    batch = pa.ipc.open_file(content).get_batch(0)
    if kind == "table":
        batch = pa.record_batch({"records": [1, 2]}, metadata=batch.schema.metadata)
    if kind == "facts":
        batch = batch.replace_schema_metadata({b"privsyn": b"{"})
    out = io.BytesIO()
    with pa.ipc.new_file(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


class TestEntries:
    def test_found_as_written_mapped_and_for_the_owner_alone(self, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        records = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
        owners = np.array([0, 0, 2, 2])
        given = StoredRecords(records=records, owners=owners, user_ids=IDS, fingerprint="f")
        RecordStore(cache).put(KEY, given)
        found = RecordStore(cache).find(KEY)
        assert found is not None
        np.testing.assert_array_equal(found.records, records)
        np.testing.assert_array_equal(found.owners, owners)
        assert (found.user_ids, found.fingerprint) == (IDS, "f")
        assert RecordStore(cache).find(OTHER) is None
        assert not found.records.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            found.records[0, 0] = 1.0
        for place in (cache, *cache.rglob("*")):
            assert place.stat().st_mode & 0o077 == 0, place

    @pytest.mark.parametrize("kind", ["empty", "cut", "table", "facts"])
    def test_damage_is_removed_and_made_again(
        self, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = RecordStore(tmp_path)
        put(store)
        path = tmp_path / "records" / f"{KEY}.arrow"
        path.write_bytes(damaged(path.read_bytes(), kind))
        with caplog.at_level(logging.WARNING, logger="flower_privsyn.embedding"):
            assert store.find(KEY) is None
        assert "made again" in caplog.text
        assert len(put(store).records) == 5
        assert store.find(KEY) is not None


class TestLimits:
    def test_unused_for_longest_goes_first(self, tmp_path: Path) -> None:
        store = RecordStore(tmp_path)
        put(store, KEY, 1000)
        put(store, OTHER, 1000)
        for key, seconds in ((KEY, 300), (OTHER, 200)):
            age(tmp_path / "records" / f"{key}.arrow", seconds)
        assert store.find(KEY) is not None  # used now, so the other one is older
        small = RecordStore(tmp_path, max_bytes=60_000)
        put(small, THIRD, 1000)
        assert small.find(OTHER) is None
        assert small.find(KEY) is not None
        assert small.find(THIRD) is not None

    def test_the_newest_stays_and_what_is_mapped_can_be_read(self, tmp_path: Path) -> None:
        store = RecordStore(tmp_path, max_bytes=1)
        first = put(store, KEY, seed=1)
        copy = first.records.copy()
        put(store, OTHER, seed=2)
        assert store.find(KEY) is None
        assert store.find(OTHER) is not None
        np.testing.assert_array_equal(first.records, copy)


class TestContentKey:
    def test_everything_counts(self) -> None:
        base = ("f", (64, 8, 0), ["x", "y"])
        keys = {content_key(*base)}
        for place, other in enumerate(("g", (64, 8, 1), ["x", "z"])):
            keys.add(content_key(*[other if i == place else v for i, v in enumerate(base)]))
        keys.add(content_key("f", (64, 8, 0), ["xy", ""]))
        assert len(keys) == 5
        assert content_key(*base) in keys


class TestProcesses:
    def test_writers_of_one_entry_at_once(self, tmp_path: Path) -> None:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            contents = pool.map(put_many, [tmp_path] * 8, chunksize=1)
        assert len(set(contents)) == 1
        assert [entry.name for entry in (tmp_path / "records").iterdir()] == [f"{KEY}.arrow"]

    def test_killed_while_writing(self, tmp_path: Path) -> None:
        """Nothing is read of what is not on the disk as a whole, and a later writer cleans up."""
        script = textwrap.dedent(
            f"""
            import os, signal
            from flower_privsyn.embedding.records import RecordStore
            from tests.support.records import put
            os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
            put(RecordStore({str(tmp_path)!r}))
            """
        )
        root = Path(__file__).parents[2]
        done = subprocess.run([sys.executable, "-c", script], cwd=root, check=False)
        assert done.returncode == -signal.SIGKILL
        assert RecordStore(tmp_path).find(KEY) is None
        (left,) = (tmp_path / "records").glob(".*.arrow.*")
        assert left.stat().st_mode & 0o077 == 0
        put(RecordStore(tmp_path), OTHER)
        assert left.exists()  # its writer may live
        age(left, 7200)
        put(RecordStore(tmp_path), THIRD)
        assert not left.exists()


def _rows(folder: Path) -> None:
    tokenizer, _ = load_tokenizer("privsyn-tiny")
    PublicRows.of("bundled", tokenizer=tokenizer, max_tokens=8, cache=folder)


@pytest.mark.parametrize("use", [RecordStore, _rows])
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


class Counting(HashEmbedder):
    """Remembers what it was asked, but for the public text that comes first."""

    def __init__(self, most: int = 10**9) -> None:
        super().__init__(8)
        self.asked: list[str] = []
        self.most = most

    def embed(self, texts: Sequence[str], *, progress: Any = None) -> NDArray[np.float32]:
        if len(self.asked) >= self.most:
            raise KeyboardInterrupt
        self.asked.extend(text for text in texts if text != skipping.PUBLIC_EXAMPLE)
        return super().embed(texts, progress=progress)


class TestEmbedTexts:
    def test_each_distinct_text_is_embedded_once(self, tmp_path: Path) -> None:
        embedder, texts = Counting(), ["a", "b", "a", "", "c", "a"]
        expected = HashEmbedder(8).embed(texts)
        for store in (None, RecordStore(tmp_path), RecordStore(tmp_path)):
            np.testing.assert_array_equal(embed_texts(embedder, texts, store), expected)
        assert sorted(embedder.asked) == sorted(["", "a", "b", "c"] * 2)

    def test_a_model_that_fails_fails_whether_or_not_there_is_a_text(self) -> None:
        class Broken(Counting):
            def embed(self, texts: Sequence[str], *, progress: Any = None) -> Any:
                raise OSError("the accelerator is gone")

        for texts in (["a text"], []):
            with pytest.raises(OSError, match="accelerator"):
                embed_texts(Broken(), texts)

    def test_a_killed_process_keeps_the_blocks_it_had(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(records, "BLOCK", 10)
        texts = [f"text {number}" for number in range(100)]
        with pytest.raises(KeyboardInterrupt):
            embed_texts(Counting(most=30), texts, RecordStore(tmp_path))
        embed_texts(rest := Counting(), texts, RecordStore(tmp_path))
        assert len(rest.asked) == 70

    def test_a_store_that_cannot_be_written_costs_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def full(*arguments: object, **options: object) -> None:
            raise DataError("no room")

        monkeypatch.setattr(records, "BLOCK", 2)
        monkeypatch.setattr(RecordStore, "put", full)
        got = embed_texts(Counting(), list("abcde"), RecordStore(tmp_path))
        np.testing.assert_array_equal(got, HashEmbedder(8).embed(list("abcde")))
        assert caplog.text.count("no room") == 1

    def test_a_text_that_the_model_fails_on_is_not_kept(self, tmp_path: Path) -> None:
        class Fails(Counting):
            def embed(self, texts: Sequence[str], *, progress: Any = None) -> Any:
                if "b" in texts:
                    raise RuntimeError
                return super().embed(texts, progress=progress)

        texts = ["a", "b", "c"]
        got = embed_texts(Fails(), texts, RecordStore(tmp_path))
        assert np.isnan(got).all(axis=1).tolist() == [False, True, False]
        assert np.isfinite(embed_texts(Counting(), texts, RecordStore(tmp_path))).all()

    def test_an_embedder_of_another_shape_is_refused(self) -> None:
        class Wrong(Counting):
            def embed(self, texts: Sequence[str], *, progress: Any = None) -> Any:
                return np.ones((len(texts), 3), np.float32)

        with pytest.raises(DataError, match=r"\(1, 8\), got \(1, 3\)"):
            embed_texts(Wrong(), ["x"])
