"""Ledgers by hand: lines of a test's own, chained as the ledger chains them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.privacy import PrivacyLedger, ReleaseSpec


def write_chain(path: Path, *lines: Mapping[str, Any], torn: str = "", version: int = 2) -> str:
    """Write a ledger; returns the digest of its last line.

    Args:
        path: the file.
        lines: all of them; the version is added to the first.
        torn: what follows them without a newline.
        version: stated by the first line.
    """
    previous, text = None, ""
    for number, line in enumerate(lines):
        stated = {"version": version} if number == 0 else {}
        raw = json.dumps({**line, **stated, "previous": previous})
        previous = hashlib.sha256(raw.encode()).hexdigest()
        text += raw + "\n"
    path.write_text(text + torn)
    assert previous is not None
    return previous


def begin(
    ledger: PrivacyLedger, *, planned_users: int, secure_randomness: bool = True, **spec: Any
) -> dict[str, Any]:
    """Begin a release in a ledger; what it is as keywords, as `ReleaseSpec` has them."""
    return ledger.begin(
        ReleaseSpec(**spec), planned_users=planned_users, secure_randomness=secure_randomness
    )
