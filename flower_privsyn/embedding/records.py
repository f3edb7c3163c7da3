"""Records of a node on its own disk, mapped into every process that answers for it.

A node's records are the same from round to round, but the process that answers need not be: Ray
hands a node to whichever actor is free, and a deployed node answers every message in a new process.
Kept in memory, each of them would load, cut and embed the text anew and hold a copy of its own.
Here the records are one Arrow file, mapped read-only: all processes of the machine share the pages.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_number, wrong_value
from flower_privsyn.embedding.embedder import Embedder
from flower_privsyn.embedding.machine import device_of, machine_digest
from flower_privsyn.environment import RECORDS_GIB
from flower_privsyn.errors import DataError
from flower_privsyn.files import expanded, os_errors_as, own_folder, remove_old, replacing, try_file
from flower_privsyn.privacy import skipping

logger = logging.getLogger("flower_privsyn.embedding")

_DEFAULT_GIB = 32.0
_VERSION = 2
_ENDING = ".arrow"
_FACTS = b"privsyn"
#: Texts embedded together: what a killed process loses at most of `embed_texts`.
BLOCK: Final = 2048
# A file that has been in the making for so long has no writer any more.
_LEFT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StoredRecords:
    """The records of a node's users, in memory or mapped from its disk.

    Attributes:
        records: float32 (n, d), read-only where mapped.
        owners: int64 (n,), index into `user_ids`, nondecreasing, as the records.
        user_ids: Of the u users, those without records included.
        fingerprint: Of the embedder that made them.
        labels: int64 (n,), classes of the records, as these; None where they have none.
    """

    records: NDArray[np.float32]
    owners: NDArray[np.int64]
    user_ids: tuple[str, ...]
    fingerprint: str
    labels: NDArray[np.int64] | None = None


def content_key(fingerprint: str, settings: Sequence[object], texts: Sequence[str]) -> str:
    """The name of a block of texts: a digest of everything that their vectors depend on.

    Args:
        fingerprint: Of the embedder, tokenizer included.
        settings: What else counts, as JSON-able values.
        texts: Of the block.

    Returns:
        64 hex digits. They tell about the text they come from and stay on the node.
    """
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    # Lengths first: without them ("ab", "c") and ("a", "bc") would be one content.
    head = json.dumps([_VERSION, fingerprint, list(settings), [*map(len, encoded)]])
    digest = hashlib.blake2b(head.encode(), digest_size=32, person=b"privsyn-records")
    digest.update(b"".join(encoded))
    return digest.hexdigest()


class RecordStore:
    """Prepared records by their names, in a folder of the node's cache.

    Any number of processes may read and write at once. An entry is one file, written under another
    name, synced, and renamed as a whole: a process that is killed while writing leaves a file that
    nobody reads and a later writer removes. What cannot be read as it was written is written anew,
    with a warning; everything here can be computed again.

    An entry is a block of texts, named by a digest of them, or all records of a node, named by a
    digest of a run, a node and a request (all public): with it a second process of that run and
    node finds the records without reading any text.

    On disk an entry takes 4 d + 8 bytes a record (133,000 users with 5 samples and d = 384: 1.0
    GB) and its user ids. When all entries together exceed the limit, those unused for longest go;
    a process that has one mapped keeps it until it lets go.

    Records tell about the text they come from: folders have mode 0700 and files 0600, and nothing
    in them is meant to leave the node. Not for network file systems, whose mapped pages are another
    matter.

    Args:
        directory: The node's cache; created if it does not exist.
        max_bytes: Most bytes of all entries; None takes `PRIVSYN_RECORDS_GIB`, else 32 GiB. At
            least the newest entry stays.

    Raises:
        ConfigError: If `PRIVSYN_RECORDS_GIB` is not a number of at least 0.
        DataError: If the folder cannot be created or written.
    """

    def __init__(self, directory: str | Path, *, max_bytes: int | None = None) -> None:
        self._max_bytes = limit_bytes() if max_bytes is None else max_bytes
        cache = expanded(directory)
        self._folder = cache / "records"
        self._unwritable = f"The record store {self._folder} cannot be written"
        with os_errors_as(DataError, self._unwritable):
            for folder in (cache, self._folder):
                own_folder(folder)
            try_file(self._folder)

    # ---- entries

    def find(self, key: str) -> StoredRecords | None:
        """The entry of a content, or None."""
        path = self._path(key)
        try:
            stored = _read(path)
        except FileNotFoundError:
            return None
        except Exception as error:  # of the disk, or whatever its bytes make of the library
            logger.warning(
                "the stored records %s cannot be read (%s); they are made again",
                path,
                type(error).__name__,
            )
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # what was used last is removed last
        return stored

    def put(self, key: str, records: StoredRecords) -> StoredRecords:
        """Write an entry, unless there is one, and map it.

        Args:
            key: Its name.
            records: In memory.

        Raises:
            DataError: If the entry cannot be written.
        """
        if (stored := self.find(key)) is not None:
            return stored  # another process was faster
        with os_errors_as(DataError, self._unwritable):
            # What killed processes left.
            remove_old(self._folder.glob(f".*{_ENDING}.*"), seconds=_LEFT_SECONDS)
            with replacing(self._path(key), for_the_owner=True) as file:
                _write(file, records)
            self._shrink(keep=key)
            return _read(self._path(key))

    # ---- keeping house

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_ENDING}"

    def _shrink(self, *, keep: str) -> None:
        """Remove entries, those unused for longest first, until the rest is within the limit."""
        entries = []
        for path in self._folder.glob(f"*{_ENDING}"):
            with contextlib.suppress(OSError):
                facts = path.stat()
                entries.append((facts.st_mtime, facts.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._max_bytes:
                return
            if path != self._path(keep):
                with contextlib.suppress(OSError):
                    path.unlink()
                total -= size


def embed_texts(
    embedder: Embedder, texts: Sequence[str], store: RecordStore | None = None
) -> NDArray[np.float32]:
    """Embed texts, each distinct one once; a text that the model fails on costs no other its own.

    Args:
        embedder: The model, whose vectors do not depend on what else is embedded.
        texts: The n texts.
        store: Where each block of `BLOCK` texts is looked for and kept, so that a killed process
            goes on where it was; None for nowhere.

    Returns:
        float32 (n, d), in order; NaN for a text that the model fails on.

    Raises:
        DataError: The embedder returns another shape than its dimension promises.
        BaseException: Whatever else it raises of public text, which comes first.
    """

    def embedded(part: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(embedder.embed(part), dtype=np.float32)
        if vectors.shape != (len(part), embedder.dimension):
            raise DataError(
                f"The embedder must return shape ({len(part)}, {embedder.dimension}), got "
                f"{vectors.shape}."
            )
        return vectors

    skipping.check(embedded, probe=skipping.PUBLIC_EXAMPLE)
    result = np.full((len(texts), embedder.dimension), np.nan, dtype=np.float32)
    rows_of: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows_of.setdefault(text, []).append(row)
    # Longest first over all blocks: a block then holds few different lengths.
    distinct = sorted(rows_of, key=len, reverse=True)
    here = machine_digest(device_of(embedder))
    for start in range(0, len(distinct), BLOCK):
        block = distinct[start : start + BLOCK]
        key = content_key(embedder.fingerprint, [here, embedder.dimension], block)
        stored = None if store is None else store.find(key)
        vectors = (
            skipping.retry_by_halves(block, embedded) if stored is None else list(stored.records)
        )
        for text, vector in zip(block, vectors, strict=True):
            if vector is not None:
                result[rows_of[text]] = vector
        whole = [vector for vector in vectors if vector is not None]
        if store is not None and stored is None and len(whole) == len(block):
            try:
                store.put(
                    key,
                    StoredRecords(
                        records=np.stack(whole),
                        owners=np.zeros(len(block), dtype=np.int64),
                        user_ids=("",),
                        fingerprint=embedder.fingerprint,
                    ),
                )
            except DataError as error:
                logger.warning("%s A process that is killed embeds its texts again.", error)
                store = None
    return result


def limit_bytes() -> int:
    """Bytes of records a node keeps on its disk, from `PRIVSYN_RECORDS_GIB`.

    Raises:
        ConfigError: If it is not a number of at least 0.
    """
    text = os.environ.get(RECORDS_GIB, "") or str(_DEFAULT_GIB)
    try:
        return int(check_number(RECORDS_GIB, float(text), ge=0, lt=2**30) * 2**30)
    except ValueError:
        raise wrong_value(RECORDS_GIB, "a number of GiB, at least 0", text) from None


def _write(file: BinaryIO, stored: StoredRecords) -> None:
    import pyarrow as pa

    values = pa.array(stored.records.reshape(-1))
    facts = {"user_ids": list(stored.user_ids), "fingerprint": stored.fingerprint}
    columns = {
        "records": pa.FixedSizeListArray.from_arrays(values, stored.records.shape[1]),
        "owners": pa.array(stored.owners),
    }
    if stored.labels is not None:
        columns["labels"] = pa.array(stored.labels)
    # Pure ASCII: whatever an id is made of comes back as it was.
    # A batch also of a node without users, where a table would have none.
    batch = pa.record_batch(columns).replace_schema_metadata({_FACTS: json.dumps(facts)})
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def _read(path: Path) -> StoredRecords:
    """Map a file; its pages stay mapped while an array is in use, and the file is closed.

    Raises:
        OSError: It cannot be opened or mapped.
        ValueError: It holds something else, or less.
        AttributeError: The same.
        KeyError: The same.
        TypeError: The same.
    """
    import pyarrow as pa

    batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
    facts = json.loads(batch.schema.metadata[_FACTS])
    rows = batch.column("records")
    return StoredRecords(
        records=rows.values.to_numpy().reshape(len(rows), rows.type.list_size),
        owners=batch.column("owners").to_numpy(),
        user_ids=tuple(facts["user_ids"]),
        fingerprint=facts["fingerprint"],
        labels=batch.column("labels").to_numpy() if "labels" in batch.schema.names else None,
    )
