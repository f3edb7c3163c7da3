"""Apps of the examples checked on a file of made-up users, and the golden runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flower_privsyn.dry_run import Report, check_plan, check_setup
from flower_privsyn.dry_run.people import People
from tests.support import golden_runs

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


def checked(strategy: Any) -> Report:
    """What `privsyn check` says of a strategy whose users are those of the golden runs."""
    users = len(golden_runs.everybody())
    people = People(users=users, held_out=0, writing=users - 1, documents=users)
    report = Report()
    plan = check_plan(strategy.method, strategy.config, people, report=report)
    if plan is not None and report.ready:
        check_setup(strategy.method, strategy.config, plan, people, report=report)
    return report
