"""Cells of comparisons, and the rows of a table that is made of them."""

from __future__ import annotations

from typing import Any

from flower_privsyn.evaluation.result import STAMP


def cell(method: str, seed: int, accuracy: float, **other: Any) -> dict[str, Any]:
    return {
        "data": "abstracts",
        "users": 3000,
        "stamp": STAMP,
        "method": method,
        "epsilon": {"public-only": 0.0, "finetune-private": None}.get(method, 1.0),
        "seed": seed,
        "status": "finished",
        "error": None,
        "delta": 4e-5 if method == "hybrid-10" else None,
        "quality": {"next_token_accuracy": accuracy, "bits_per_byte": 1.9},
        "distilled": None,
        "texts": None,
        "costs": None,
    } | other


CELLS = [
    cell("public-only", 0, 0.20),
    cell("hybrid-10", 0, 0.26),
    cell("hybrid-10", 1, 0.30),
    cell("finetune-private", 0, 0.40),
    cell("hybrid-10", 0, 0.99, users=300),
]


def rows(table: str) -> dict[str, list[str]]:
    lines = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {line[0].removeprefix("| "): line[1:] for line in lines}
