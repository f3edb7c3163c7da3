"""What stands in the files of a run directory, byte by byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.files import read_json_lines
from flower_privsyn.run import RunDirectory

#: A moment as it is written, and moments as numbers: seconds or nanoseconds since 1970.
_DATE = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[0-9:.+Z]*")
_SECONDS = (1.5e9, 2.5e9)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def add_line(run: RunDirectory, metrics: Mapping[str, Any]) -> None:
    """Add a round's line to `metrics.jsonl`, as the end of the round does."""
    run.log_metrics(metrics)


def releases(run: Path) -> list[dict[str, Any]]:
    return [line for line in lines(run / "ledger.jsonl") if line["event"] == "release"]


def release(run: Path, number: int) -> np.ndarray:
    return np.load(run / "rounds" / f"{number:04d}" / "release.npy")


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path in it."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def times_in(path: Path) -> dict[str, set[str]]:
    """Moments and durations that stand in the files of a folder: what was found, by file."""
    found: dict[str, set[str]] = {}
    for name, content in contents(path).items():
        dates = {match.decode() for match in _DATE.findall(content)}
        records: list[Any] = []
        if name.endswith(".jsonl"):
            records = list(read_json_lines(path / name))
        elif name.endswith(".json"):
            records = [json.loads(content)]
        dates |= {word for record in records for word in _times_of(record)}
        if dates:
            found[name] = dates
    return found


def _times_of(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _times_of(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _times_of(item, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = _SECONDS
        moment = low < value < high or low < value / 1e9 < high
        named = re.search("second|time|started|finished", key) and "timeout" not in key
        if moment or named:
            yield f"{key}: {value}"
