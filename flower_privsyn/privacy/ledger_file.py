"""The append-only file under every ledger: chained JSON lines, locked, on the disk when written."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.errors import LedgerError
from flower_privsyn.privacy.ledger_chain import digest, split


class LedgerFile:
    """JSON objects, one a line, each with the SHA-256 of the line before under ``previous``.

    Mode 0600, locked while it is open, and synchronised when `append` returns. What a process
    that dies inside `append` leaves behind is no line: the call never returned.

    Use `create` or `open`; `flower_privsyn.privacy.ledger_chain.read_chain` to look only.

    Args:
        path: Where the file is.
        descriptor: Of the open and locked file; None for a file that is only read.
        size: Bytes of its complete lines.
        digests: SHA-256 of each of them, oldest first.

    Attributes:
        digests: The same, also of lines appended since.
    """

    def __init__(
        self,
        path: Path,
        descriptor: int | None,
        *,
        size: int = 0,
        digests: tuple[str, ...] = (),
    ) -> None:
        self.path = path
        self.digests = list(digests)
        self._descriptor = descriptor
        self._size = size

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
            _lock(descriptor, path, wait=False)
            file.append(header)
            _name(unnamed, path)
            _synchronise_folder(path)
        except FileExistsError as error:
            file.close()
            raise LedgerError(f"{path} already exists; open it to continue it.") from error
        except OSError as error:
            file.close()
            raise unwritable(path, error) from error
        except BaseException:
            file.close()
            raise
        finally:
            with contextlib.suppress(OSError):
                unnamed.unlink()
        return file

    @classmethod
    def open(
        cls, path: Path, *, wait: bool = False
    ) -> tuple[LedgerFile, list[dict[str, Any]], bytes]:
        """Lock a file and read it.

        Args:
            path: A file made by `create`.
            wait: Until whoever has locked it lets go.

        Returns:
            The file, its complete lines, and what a torn last write left; see `cut_off`,
            which must be called before anything is appended where that is not empty.

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
            _lock(descriptor, path, wait=wait)
            with os.fdopen(os.dup(descriptor), "rb") as stream:
                data = stream.read()
            chain = split(path, data)
        except BaseException:
            os.close(descriptor)
            raise
        size = len(data) - len(chain.torn)
        file = cls(path, descriptor, size=size, digests=chain.digests)
        return file, list(chain.lines), chain.torn

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
        self._size += len(data)
        self.digests.append(digest(raw))
        parsed: dict[str, Any] = json.loads(raw)
        return parsed

    def cut_off(self, torn: bytes) -> None:
        """Copy what a torn write left to ``<path>.torn`` and cut it off."""
        if self._descriptor is None:
            raise LedgerError(f"{self.path} is closed.")
        aside = self.path.with_name(f"{self.path.name}.torn")
        try:
            copy = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(copy, torn if torn.endswith(b"\n") else torn + b"\n")
                os.fsync(copy)
            finally:
                os.close(copy)
            _synchronise_folder(aside)
            os.ftruncate(self._descriptor, self._size)
            os.fsync(self._descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def close(self) -> None:
        """Release the lock; nothing more can be appended."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def unwritable(path: Path, error: OSError) -> LedgerError:
    """The error of a file that the operating system refuses."""
    return LedgerError(f"{path} cannot be written: {error.strerror or error}.")


def _lock(descriptor: int, path: Path, *, wait: bool) -> None:
    try:
        import fcntl
    except ImportError as error:
        raise LedgerError(
            f"{path} cannot be locked: this operating system has no flock, which the ledger needs."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise LedgerError(f"{path} is in use by another process.") from error


def _name(unnamed: Path, path: Path) -> None:
    """Give a file its name unless the name is taken."""
    try:
        os.link(unnamed, path)
    except FileExistsError:
        raise
    except OSError:
        # A file system without hard links: renaming replaces, so whoever looks and renames holds
        # a lock. Its file stays: another process may be waiting for this very one.
        turn = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(turn, path, wait=True)
            if os.path.lexists(path):
                raise FileExistsError(path) from None
            unnamed.rename(path)
        finally:
            os.close(turn)


def _synchronise_folder(path: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
