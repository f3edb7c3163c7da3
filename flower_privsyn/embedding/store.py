"""Records of a node on its own disk, mapped into every process that answers for it.

A node's records are the same from round to round, but the process that answers need not be: Ray
hands a node to whichever actor is free, and a deployed node answers every message in a new process.
Kept in memory, each of them would load, cut and embed the text anew and hold a copy of its own.
Here the records are two files, mapped read-only: all processes of the machine share the pages.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.environment import RECORDS_GIB
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import replacing

logger = logging.getLogger("flower_privsyn.embedding")

_DEFAULT_GIB = 32.0
_VERSION = 1
_RECORDS, _OWNERS, _ENTRY = "records.npy", "owners.npy", "entry.json"
# Strings copied at a time for the digest, which depends on it: another number, other names.
_DIGESTED = 2**16
_WRITING, _GONE = ".writing-", ".gone-"
# A writer locks its folder right after making it; whoever looks in between must not take it away.
_UNLOCKED_SECONDS = 60.0
_TICKET_SECONDS = 7 * 24 * 3600.0
# A mapped file stays open. A process that answers for a thousand small nodes would run out of
# descriptors, and so few bytes are better copied.
_COPIED_BYTES = 2**16


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredRecords:
    """The records of a node's users, mapped from its disk or, where they are few, read from it.

    Attributes:
        records: float32 (n, d), read-only.
        owners: int64 (n,), index into `user_ids`, nondecreasing, read-only.
        user_ids: Of the u users, those without records included.
        fingerprint: Of the embedder that made them.
    """

    records: NDArray[np.float32]
    owners: NDArray[np.int64]
    user_ids: tuple[str, ...]
    fingerprint: str


def content_key(
    fingerprint: str, settings: Sequence[object], user_ids: Sequence[str], owners: Any, texts: Any
) -> str:
    """The name of an entry: a digest of everything that the records depend on.

    Args:
        fingerprint: Of the embedder, tokenizer included.
        settings: How documents are cut, as JSON-able values.
        user_ids: Of the u users.
        owners: int64 (n,), whose each text is.
        texts: The n documents before they are cut.

    Returns:
        64 hex digits. They tell about the text they come from and stay on the node.
    """
    digest = hashlib.blake2b(digest_size=32, person=b"privsyn-records")
    head = json.dumps([_VERSION, fingerprint, list(settings), len(user_ids), len(texts)])
    digest.update(head.encode())
    digest.update(np.ascontiguousarray(owners, dtype="<i8").tobytes())
    for strings in (user_ids, texts):
        for start in range(0, len(strings), _DIGESTED):
            part = strings[start : start + _DIGESTED]
            encoded = [string.encode("utf-8", "surrogatepass") for string in part]
            # Lengths first: without them ("ab", "c") and ("a", "bc") would be one content.
            digest.update(np.fromiter(map(len, encoded), "<i8", len(encoded)).tobytes())
            digest.update(b"".join(encoded))
    return digest.hexdigest()


class RecordStore:
    """Prepared records under the digest of their content, in a folder of the node's cache.

    Any number of processes may read and write at once. An entry is written into a folder of its
    own, synced, and renamed to its name as a whole: a process that is killed while writing leaves a
    folder that nobody reads and the next writer removes. What cannot be read as it was written is
    removed, with a warning; everything here can be computed again.

    Beside the entries lie *tickets*: small files, named by a digest of a run, a node and a request
    (all public), that hold the name of an entry. With one, a second process of that run and node
    finds the records without reading any text. A ticket that nobody has used for a week is removed
    when another one is written.

    On disk an entry takes 4 d + 8 bytes a record (133,000 users with 5 samples and d = 384: 1.0
    GB) and its user ids. When all entries together exceed the limit, those unused for longest go;
    a process that has one mapped keeps it until it lets go.

    Records tell about the text they come from: folders have mode 0700, and nothing in them is meant
    to leave the node. Not for network file systems, whose mapped pages and locks are another
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
        cache = Path(directory).expanduser()
        self._folder = cache / "records"
        self._tickets = self._folder / "runs"
        try:
            for folder in (cache, self._folder, self._tickets):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Rights alone do not tell: root may write where the file system is read-only.
            with tempfile.TemporaryFile(dir=self._tickets):
                pass
        except OSError as error:
            raise DataError(
                f"The record store {self._folder} cannot be created or written "
                f"({error.strerror or type(error).__name__})."
            ) from None

    # ---- entries

    def find(self, key: str) -> StoredRecords | None:
        """The entry of a content, or None."""
        folder = self._folder / key
        try:
            facts = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
            stored = StoredRecords(
                records=_read_array(folder / _RECORDS),
                owners=_read_array(folder / _OWNERS),
                user_ids=tuple(facts["user_ids"]),
                fingerprint=facts["fingerprint"],
            )
            _check(stored)
        except FileNotFoundError:
            if folder.is_dir():  # and has lost a file: it would be in the way of a new one
                self._remove(folder)
            return None
        except OSError as error:
            # Too many open files, no memory, a disk that fails: no fault of the entry's, which
            # other processes may be able to read.
            logger.warning(
                "the stored records %s cannot be read (%s)", folder, error.strerror or "OSError"
            )
            return None
        except (EOFError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "the stored records %s cannot be read (%s); they are made again",
                folder,
                type(error).__name__,
            )
            self._remove(folder)
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)  # what was used last is removed last
        return stored

    def put(
        self,
        key: str,
        *,
        records: NDArray[np.float32],
        owners: NDArray[np.int64],
        user_ids: Sequence[str],
        fingerprint: str,
    ) -> StoredRecords:
        """Write an entry and map it.

        Args:
            key: From `content_key`.
            records: float32 (n, d).
            owners: int64 (n,), nondecreasing, in `range(len(user_ids))`.
            user_ids: Of the u users.
            fingerprint: Of the embedder.

        Raises:
            DataError: If the shapes do not fit, or the entry cannot be written.
        """
        given = StoredRecords(
            records=np.ascontiguousarray(records, dtype="<f4"),
            owners=np.ascontiguousarray(owners, dtype="<i8"),
            user_ids=tuple(user_ids),
            fingerprint=fingerprint,
        )
        try:
            _check(given)
        except ValueError as error:
            raise DataError(f"Records cannot be stored: {error}.") from None
        try:
            self._sweep()
            with self._writing() as folder:
                _write_array(folder / _RECORDS, given.records)
                _write_array(folder / _OWNERS, given.owners)
                facts = {"user_ids": list(given.user_ids), "fingerprint": fingerprint}
                with (folder / _ENTRY).open("w", encoding="utf-8") as file:
                    # Pure ASCII: whatever an id is made of comes back as it was.
                    json.dump(facts, file)
                    file.flush()
                    os.fsync(file.fileno())
                _sync(folder)
                with contextlib.suppress(FileExistsError):
                    _rename(folder, self._folder / key)  # else another process was faster
            _sync(self._folder)
            self._shrink(keep=key)
        except OSError as error:
            raise DataError(
                f"The record store {self._folder} cannot be written "
                f"({error.strerror or type(error).__name__})."
            ) from None
        stored = self.find(key)
        if stored is None:
            raise DataError(f"The record store {self._folder} does not keep what is written.")
        return stored

    # ---- tickets

    def remember(self, ticket: str, key: str) -> None:
        """Note which entry belongs to a run, a node and a request.

        Raises:
            DataError: If the note cannot be written.
        """
        try:
            with replacing(self._tickets / ticket) as temporary:
                temporary.write_text(key, encoding="ascii")
        except OSError as error:
            raise DataError(
                f"The record store {self._folder} cannot be written "
                f"({error.strerror or type(error).__name__})."
            ) from None

    def recall(self, ticket: str) -> StoredRecords | None:
        """The entry of a run, a node and a request, or None."""
        path = self._tickets / ticket
        try:
            key = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        if len(key) != 64 or not set(key) <= set("0123456789abcdef"):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return self.find(key)

    # ---- keeping house

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Path]:
        """A folder that holds a lock while its writer lives, and is gone afterwards."""
        folder = Path(tempfile.mkdtemp(prefix=_WRITING, dir=self._folder))  # mode 0700
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(descriptor)
            shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what killed processes left, and tickets of runs that are long over."""
        for prefix in (_WRITING, _GONE):
            for folder in self._folder.glob(f"{prefix}*"):
                if _age(folder) > _UNLOCKED_SECONDS and _unlocked(folder):
                    shutil.rmtree(folder, ignore_errors=True)
        for ticket in self._tickets.iterdir():
            if _age(ticket) > _TICKET_SECONDS:
                ticket.unlink(missing_ok=True)

    def _shrink(self, *, keep: str) -> None:
        """Remove entries, those unused for longest first, until the rest is within the limit."""
        entries = []
        for folder in self._folder.iterdir():
            if folder.name.startswith(".") or folder == self._tickets:
                continue
            with contextlib.suppress(OSError):
                size = sum(file.stat().st_size for file in folder.iterdir())
                entries.append((folder.stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= self._max_bytes:
                return
            if folder.name != keep:
                self._remove(folder)
                total -= size

    def _remove(self, folder: Path) -> None:
        """Take an entry away: under another name first, so that nobody finds half of it."""
        gone = self._folder / f"{_GONE}{folder.name}-{os.getpid()}-{time.monotonic_ns()}"
        with contextlib.suppress(OSError):
            folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def limit_bytes() -> int:
    """Bytes of records a node keeps on its disk, from `PRIVSYN_RECORDS_GIB`.

    Raises:
        ConfigError: If it is not a number of at least 0.
    """
    text = os.environ.get(RECORDS_GIB, "")
    try:
        gib = float(text) if text else _DEFAULT_GIB
    except ValueError:
        gib = -1.0
    if not 0 <= gib < 2**30:
        raise ConfigError(f"{RECORDS_GIB} must be a number of GiB, at least 0, got {text!r}.")
    return int(gib * 2**30)


def _check(stored: StoredRecords) -> None:
    records, owners = stored.records, stored.owners
    if records.ndim != 2 or records.dtype != np.float32 or owners.shape != (len(records),):
        raise ValueError(
            f"records must be float32 (n, d) and owners (n,), got {records.dtype} "
            f"{records.shape} and {owners.shape}"
        )
    if owners.dtype != np.int64:
        raise ValueError(f"owners must be int64, got {owners.dtype}")
    users = len(stored.user_ids)
    if len(owners) and (
        owners[0] < 0 or owners[-1] >= users or bool(np.any(owners[1:] < owners[:-1]))
    ):
        raise ValueError(f"owners must be nondecreasing and in range({users})")


def _write_array(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())


def _read_array(path: Path) -> NDArray[Any]:
    """Map an array, or read a small one; not writeable."""
    array: NDArray[Any]
    if path.stat().st_size <= _COPIED_BYTES:
        array = np.array(np.load(path))  # owns its memory, which tells it from a mapped one
    else:
        array = np.asarray(np.load(path, mmap_mode="r"))
    array.flags.writeable = False
    return array


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(folder: Path, target: Path) -> None:
    """Give a folder its name; FileExistsError where there is one by that name."""
    try:
        folder.rename(target)
    except OSError:
        if target.is_dir():
            raise FileExistsError(str(target)) from None
        raise


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _unlocked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
