"""Embeddings on the node's disk, shared by every process of the node."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.embedding.embedder import Embedder
from flower_privsyn.embedding.machine import device_of, machine_digest
from flower_privsyn.embedding.salvage import check_embeds, embed_each
from flower_privsyn.errors import DataError
from flower_privsyn.files import expanded, own_folder

logger = logging.getLogger("flower_privsyn.embedding")

_FILE = "embeddings.sqlite"
_SCHEMA = "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, vector BLOB NOT NULL)"
# How long one writer waits for another one; a write takes milliseconds.
_BUSY_SECONDS = 60.0
_QUERY_KEYS = 900  # SQLite before 3.32 takes at most 999 parameters
_WRITE_ROWS = 4096
# Texts embedded between two writes: what a killed process loses at most.
_BLOCK = 2048


class EmbeddingCache:
    """An SQLite file of float32 vectors under (model fingerprint, machine, device, text).

    The machine is its processor and libraries: after an upgrade texts are embedded
    anew, else a user's vector would depend on whose text had been embedded before it.

    Any number of processes and threads may read and write it at once (write-ahead log, one short
    transaction per write), and killing one of them at any point leaves the file whole. A file that
    is damaged all the same is moved aside, with a warning, and begun anew: everything in it can be
    computed again.

    Keys are 128-bit BLAKE2b hashes; the text itself is not stored. Vectors and hashes still tell
    about the text they come from: the directory is created with mode 0700 and the files with 0600,
    and neither is meant to leave the node. Not for network file systems, whose locks SQLite's
    write-ahead log cannot use.

    Args:
        directory: Created if it does not exist.

    Raises:
        DataError: If the directory cannot be created or written.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = expanded(directory)
        self._path = self._directory / _FILE
        try:
            own_folder(self._directory)
            # SQLite would create it readable by all; its log files take the mode of this one.
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise DataError(
                f"Embedding cache {self._directory} cannot be created or written "
                f"({error.strerror or type(error).__name__})."
            ) from None
        with self._connection():
            pass

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def get_many(
        self, fingerprint: str, texts: Sequence[str], *, dimension: int, device: str = ""
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Look texts up.

        Args:
            fingerprint: Of the embedder.
            texts: The n texts.
            dimension: Length of the embedder's vectors; a vector of another length is not found.
            device: What the embedder computes on (`device_of`); others round differently.

        Returns:
            float32 (n, dimension), zero where nothing is found, and bool (n,) of what is found.

        Raises:
            DataError: If the file cannot be read.
        """
        vectors = np.zeros((len(texts), dimension), dtype=np.float32)
        found = np.zeros(len(texts), dtype=np.bool_)
        rows_of: dict[bytes, list[int]] = {}
        for row, key in enumerate(_keys(fingerprint, texts, device)):
            rows_of.setdefault(key, []).append(row)
        keys = list(rows_of)

        def read(connection: sqlite3.Connection) -> None:
            for start in range(0, len(keys), _QUERY_KEYS):
                part = keys[start : start + _QUERY_KEYS]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, vector FROM embeddings WHERE key IN ({marks})"
                for key, blob in connection.execute(query, part):
                    if len(blob) == 4 * dimension:
                        rows = rows_of[key]
                        vectors[rows] = np.frombuffer(blob, dtype="<f4")
                        found[rows] = True

        self._run(read)
        return vectors, found

    def put_many(
        self,
        fingerprint: str,
        texts: Sequence[str],
        vectors: NDArray[np.float32],
        *,
        device: str = "",
    ) -> None:
        """Store the vectors of texts; rows that are not finite are left out.

        Args:
            fingerprint: Of the embedder.
            texts: The n texts.
            vectors: float32 (n, d).
            device: What they were computed on, as for `get_many`.

        Raises:
            DataError: If the shape does not fit or the file cannot be written.
        """
        vectors = np.ascontiguousarray(vectors, dtype="<f4")
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DataError(
                f"vectors must have shape ({len(texts)}, d) for {len(texts)} texts, "
                f"got {vectors.shape}."
            )
        finite = np.all(np.isfinite(vectors), axis=1, keepdims=True)[:, 0]  # (n,)
        rows = [
            (key, vectors[row].tobytes())
            for row, key in enumerate(_keys(fingerprint, texts, device))
            if finite[row]
        ]

        def write(connection: sqlite3.Connection) -> None:
            for start in range(0, len(rows), _WRITE_ROWS):
                # IMMEDIATE takes the write lock at once: two readers that both turn into
                # writers would wait for each other.
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT OR REPLACE INTO embeddings VALUES (?, ?)",
                    rows[start : start + _WRITE_ROWS],
                )
                connection.execute("COMMIT")

        if rows:
            self._run(write)

    def __len__(self) -> int:
        """Number of vectors, of all models together."""
        counts: list[int] = []
        self._run(
            lambda connection: counts.append(
                connection.execute("SELECT count(*) FROM embeddings").fetchone()[0]
            )
        )
        return int(counts[-1])

    def _run(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """Run an action, which can be repeated, on a file that is whole."""
        for attempt in (1, 2):
            inode = self._inode()
            try:
                with self._connection() as connection:
                    action(connection)
                return
            except sqlite3.DatabaseError as error:
                if attempt == 2 or not _damaged(error):
                    raise DataError(
                        f"Embedding cache {self._path} cannot be read or written "
                        f"({getattr(error, 'sqlite_errorname', None) or type(error).__name__})."
                    ) from None
                self._move_aside(inode)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection of this call: none is shared between threads or inherited by a fork."""
        for attempt in (1, 2):
            inode = self._inode()
            try:
                connection = self._connect()
                break
            except sqlite3.DatabaseError as error:
                if attempt == 2 or not _damaged(error):
                    raise DataError(
                        f"Embedding cache {self._path} cannot be opened "
                        f"({getattr(error, 'sqlite_errorname', None) or type(error).__name__})."
                    ) from None
                self._move_aside(inode)
        try:
            yield connection
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                # Going over to the log needs the file alone and does not wait for it by itself.
                connection.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        # The log is synced when it is merged: a power cut may cost the last writes, never the file.
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(_SCHEMA)

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None

    def _move_aside(self, inode: int | None) -> None:
        """Rename the damaged file, unless another process has already put a new one there."""
        with (self._directory / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if inode is None or self._inode() != inode:
                return
            aside = f"{self._path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            for ending in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self._path}{ending}").rename(f"{aside}{ending}")
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        logger.warning(
            "the embedding cache %s was damaged; it is kept as %s, and embeddings are computed "
            "again",
            self._path,
            aside,
        )


def cached_embed(
    embedder: Embedder,
    texts: Sequence[str],
    cache: EmbeddingCache | None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts, computing only what the cache does not hold, each distinct text once.

    What is computed is stored block by block, so that a killed process keeps what it had. A cache
    that cannot be written costs a warning, not the run.

    Args:
        embedder: The model.
        texts: The n texts.
        cache: Where to look and to store; None computes everything.
        progress: Called with the number of texts done since the last call; n in total.

    Returns:
        float32 (n, d), in order; NaN for a text that the model fails on.

    Raises:
        DataError: If the embedder returns another shape than its dimension promises.
    """
    texts = list(texts)
    dimension, device = embedder.dimension, device_of(embedder)
    vectors = np.zeros((len(texts), dimension), dtype=np.float32)
    found = np.zeros(len(texts), dtype=np.bool_)
    if cache is not None:
        try:
            vectors, found = cache.get_many(
                embedder.fingerprint, texts, dimension=dimension, device=device
            )
        except DataError as error:
            logger.warning("%s Continuing without it.", error)
            cache = None
    if progress is not None and found.any():
        progress(int(found.sum()))
    rows_of: dict[str, list[int]] = {}
    for row in np.flatnonzero(~found):
        rows_of.setdefault(texts[row], []).append(int(row))
    # Longest first over all blocks: a block then holds few different lengths.
    missing = sorted(rows_of, key=len, reverse=True)
    if missing or not texts:
        check_embeds(embedder)
    for start in range(0, len(missing), _BLOCK):
        block = missing[start : start + _BLOCK]
        computed = embed_each(embedder, block, progress)
        repeats = 0
        for text, vector in zip(block, computed, strict=True):
            vectors[rows_of[text]] = vector
            repeats += len(rows_of[text]) - 1
        if progress is not None and repeats:
            progress(repeats)
        if cache is not None:
            try:
                cache.put_many(embedder.fingerprint, block, computed, device=device)
            except DataError as error:
                logger.warning("%s Continuing without it.", error)
                cache = None
    return vectors


def _keys(fingerprint: str, texts: Sequence[str], device: str) -> Iterator[bytes]:
    content = f"{fingerprint} {machine_digest(device)}"
    model = hashlib.blake2b(content.encode(), digest_size=32).digest()
    for text in texts:
        # A lone surrogate cannot be UTF-8, and must not bring the node down here.
        yield hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=16, key=model
        ).digest()


def _damaged(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
