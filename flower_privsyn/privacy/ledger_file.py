"""The append-only file under every ledger: chained JSON lines, locked, on the disk when written.

Every line but the first holds the SHA-256 of the one before. Files that are written later hold the
digest of the line that was the last when they were written, so that a ledger from which lines were
cut, or which was put in the place of another, is noticed: it lacks a line that another file states.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.errors import LedgerError

logger = logging.getLogger("flwr.privsyn")

VERSION = 2
"""Of the format of a run's ledger."""


class LedgerFile:
    """JSON objects, one a line, each with the SHA-256 of the line before under ``previous``.

    Mode 0600, locked while it is open, and synchronised when `append` returns. What a process
    that dies inside `append` leaves behind is no line: the call never returned. It is left out
    here, and the next line is written in its place.

    Use `create`, `open`, or `read` to look only.

    Args:
        path: Where the file is.
        descriptor: Of the open and locked file; None for a file that is only read.
        data: What is in it.

    Attributes:
        lines: The complete lines when it was opened, oldest first.
        digests: SHA-256 of each of them and of those appended since, 64 hexadecimal digits.

    Raises:
        LedgerError: A line before the last is not a JSON object, or does not follow the one before.
    """

    def __init__(self, path: Path, descriptor: int | None, data: bytes = b"") -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        self.digests: list[str] = []
        self._descriptor = descriptor
        self._size = 0
        *complete, tail = data.split(b"\n")
        for number, raw in enumerate(complete, start=1):
            try:
                parsed = json.loads(raw)
            except ValueError as error:
                if number == len(complete) and not tail and number > 1:
                    tail = raw  # torn, though its newline is on the disk
                    break
                raise damaged(path, number, "not JSON") from error
            if not isinstance(parsed, dict):
                raise damaged(path, number, "not a JSON object")
            if parsed.get("previous") != (self.digests[-1] if self.digests else None):
                raise damaged(
                    path, number, "the chain is broken: it does not follow the line before"
                )
            self._take(parsed, raw)
        if tail and descriptor is not None:
            logger.warning("%s ends in a torn line, which the next one replaces", path)

    def _take(self, line: dict[str, Any], raw: bytes) -> None:
        self.lines.append(line)
        self.digests.append(hashlib.sha256(raw).hexdigest())
        self._size += len(raw) + 1

    @property
    def digest(self) -> str:
        """The SHA-256 of the last line, 64 hexadecimal digits.

        Raises:
            LedgerError: There is no line.
        """
        if not self.digests:
            raise LedgerError(f"{self.path} holds no line.")
        return self.digests[-1]

    @classmethod
    def create(cls, path: Path, header: Mapping[str, Any]) -> LedgerFile:
        """Start a file with its first line; the folder must exist.

        Raises:
            LedgerError: The file exists or cannot be written.
        """
        # The header is complete before the file gets its name: no crash leaves half a ledger.
        unnamed = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        try:
            descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as error:
            raise unwritable(path, error) from error
        file = cls(path, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            file.append(header)
            os.link(unnamed, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # a new name survives a power cut
            finally:
                os.close(folder)
        except BaseException as error:
            file.close()
            if isinstance(error, FileExistsError):
                raise LedgerError(f"{path} already exists; open it to continue it.") from error
            if isinstance(error, OSError):
                raise unwritable(path, error) from error
            raise
        finally:
            with contextlib.suppress(OSError):
                unnamed.unlink()
        return file

    @classmethod
    def open(cls, path: Path, *, wait: bool = False) -> LedgerFile:
        """Lock a file and read it.

        Args:
            path: A file made by `create`.
            wait: Until whoever has locked it lets go.

        Raises:
            LedgerError: The file is missing, in use, or damaged before its last line.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError as error:
            raise LedgerError(f"{path} does not exist.") from error
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return cls(path, descriptor, path.read_bytes())
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise LedgerError(f"{path} is in use by another process.") from error
            raise

    @classmethod
    def read(cls, path: Path) -> LedgerFile:
        """Read a file without locking it; nothing can be appended.

        Raises:
            LedgerError: The file is missing, cannot be read, or is damaged before its last line.
        """
        try:
            return cls(path, None, path.read_bytes())
        except FileNotFoundError as error:
            raise LedgerError(f"{path} does not exist.") from error
        except OSError as error:
            raise LedgerError(f"{path} cannot be read: {error.strerror or error}.") from error

    def append(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line and return it when it is on the disk.

        Raises:
            LedgerError: It is no JSON, the file is closed, or it cannot be written; it is then
                closed and holds what it held.
        """
        if self._descriptor is None:
            raise LedgerError(f"{self.path} is closed.")
        try:
            previous = self.digests[-1] if self.digests else None
            raw = json.dumps({**line, "previous": previous}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise LedgerError(f"A ledger line cannot be written as JSON: {error}.") from error
        data = raw + b"\n"
        try:
            os.ftruncate(self._descriptor, self._size)  # of what a torn write left
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            # Half a line must not be followed by another one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            self.close()
            raise unwritable(self.path, error) from error
        parsed: dict[str, Any] = json.loads(raw)
        self._take(parsed, raw)
        return parsed

    def close(self) -> None:
        """Release the lock; nothing more can be appended."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def header(path: Path, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first line of a run's ledger of this version.

    Raises:
        LedgerError: There is none, or it is of another version.
    """
    if not lines or lines[0].get("event") != "opened":
        raise LedgerError(f"{path} is not a privacy ledger: its first line is no header.")
    found = lines[0].get("version")
    if found != VERSION:
        raise LedgerError(f"{path} has version {found!r} where this package reads {VERSION}.")
    return lines[0]


def refuse_cut(path: Path, digests: Collection[str], stated: Mapping[str, str]) -> None:
    """Refuse a ledger that lacks a line which another file of its run states.

    Args:
        path: the ledger.
        digests: of its lines; none where the file is missing.
        stated: digests in other files of the run, and for each the name of such a file.

    Raises:
        LedgerError: A digest is of no line.
    """
    known = frozenset(digests)
    for wanted, file in stated.items():
        if wanted not in known:
            raise LedgerError(
                f"{path} lacks the line {wanted[:12]}..., which {file} states: the ledger was "
                "removed, cut or replaced, what it says of the privacy spent is too little, and "
                "the run is refused."
            )


def open_rounds(lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Rounds that were started and neither charged nor discarded: charged when a run goes on.

    Args:
        lines: of a ledger.
    """
    left: dict[int, None] = {}
    for line in lines:
        if line.get("event") == "started":
            left[line["round"]] = None
        elif line.get("event") in ("release", "discarded"):
            left.pop(line["round"], None)
    return list(left)


def stated_costs(lines: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The line whose epsilons are those of everything in a ledger; empty before the first release.

    That of the last release, or where the rounds ended early the one that says so.

    Args:
        lines: of a ledger.
    """
    stated = [line for line in lines if line.get("event") in ("release", "ended")]
    return stated[-1] if stated else {}


def damaged(path: Path, number: int, what: str) -> LedgerError:
    """The error that names a line of a ledger."""
    return LedgerError(f"{path} line {number} is damaged: {what}.")


def unwritable(path: Path, error: OSError) -> LedgerError:
    """The error of a file that the operating system refuses."""
    return LedgerError(f"{path} cannot be written: {error.strerror or error}.")
