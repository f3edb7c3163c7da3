"""A store of records with something in it; processes import nothing else that tests need."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flower_privsyn.embedding.records import RecordStore, StoredRecords

KEY = "a" * 64
IDS = ("ann", "bob", "\u00e9va")


def put(store: RecordStore, key: str = KEY, rows: int = 5, seed: int = 0) -> StoredRecords:
    records = np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)
    owners = np.sort(np.arange(rows) % 3).astype(np.int64)
    given = StoredRecords(records=records, owners=owners, user_ids=IDS, fingerprint="f")
    return store.put(key, given)


def put_many(directory: Path) -> bytes:
    """Write an entry that takes a while, and return its records."""
    return put(RecordStore(directory), rows=20_000).records.tobytes()
