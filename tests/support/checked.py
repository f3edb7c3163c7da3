"""Apps of the examples checked on a file of made-up users."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from flower_privsyn.dry_run import Report

Check = Callable[..., Report]


def users_file(folder: Path, *, users: int = 60, text: str = "The court ruled on the tax.") -> Path:
    """A file of users of one text each, which ends with their number."""
    path = folder / "users.jsonl"
    rows = ({"client_id": f"u{n}", "text": f"{text} {n}"} for n in range(users))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def stops(report: Report) -> dict[str, str]:
    """What stops the run, by what it is about."""
    return {diagnostic.topic: diagnostic.sentence for diagnostic in report.of_level("stops")}
