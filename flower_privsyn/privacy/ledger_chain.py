"""The lines of a privacy ledger as a chain of digests, read without any accounting.

Every line but the first holds the SHA-256 of the one before. Files that are written later hold the
digest of the line that was the last when they were written, so that a ledger from which lines were
cut, or which was put in the place of another, is noticed: it lacks a line that another file states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.errors import LedgerError

VERSION = 2
"""Of the ledger's format."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A ledger's complete lines, each following the one before.

    Attributes:
        lines: oldest first; none where there is no ledger.
        digests: of each line, 64 hexadecimal digits.
        torn: what a torn last write left behind; empty mostly.
    """

    lines: tuple[dict[str, Any], ...]
    digests: tuple[str, ...]
    torn: bytes


def digest(raw: bytes) -> str:
    """The SHA-256 of a line without its newline, 64 hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


def split(path: Path, data: bytes) -> Chain:
    """The complete lines in the content of a ledger.

    Args:
        path: where it is from, for the error.
        data: the content.

    Raises:
        LedgerError: A line before the last is not a JSON object, or does not follow the one before.
    """
    *complete, tail = data.split(b"\n")
    lines: list[dict[str, Any]] = []
    digests: list[str] = []
    for number, raw in enumerate(complete, start=1):
        try:
            parsed = json.loads(raw)
        except ValueError as error:
            if number == len(complete) and not tail and number > 1:
                tail = raw + b"\n"
                break
            raise damaged(path, number, "not JSON") from error
        if not isinstance(parsed, dict):
            raise damaged(path, number, "not a JSON object")
        if parsed.get("previous") != (digests[-1] if digests else None):
            raise damaged(path, number, "the chain is broken: it does not follow the line before")
        lines.append(parsed)
        digests.append(digest(raw))
    return Chain(lines=tuple(lines), digests=tuple(digests), torn=tail)


def read_chain(path: Path) -> Chain:
    """Read a ledger, without locking or repairing it.

    Raises:
        LedgerError: The file is missing, cannot be read, or is damaged before its last line.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise LedgerError(f"{path} does not exist.") from error
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror or error}.") from error
    return split(path, data)


def header(path: Path, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first line of a privacy ledger of this version.

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
