"""From cells to a table: means and standard errors over seeds, and the gap that was closed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flower_privsyn.strategies.catalogue import ComparedMethod

#: Figures of `quality` and of `texts` that the table has.
_QUALITY = ("next_token_accuracy", "perplexity", "bits_per_byte")
_TEXTS = ("frechet", "mmd", "mauve", "self_similarity")
_COSTS = (
    "rounds",
    "floats_up",
    "bytes_up",
    "floats_down",
    "bytes_down",
    "client_cpu_seconds",
    "server_seconds",
    "wall_seconds",
)


def summarise(
    cells: Sequence[Mapping[str, Any]], methods: Sequence[ComparedMethod]
) -> list[dict[str, Any]]:
    """One row per method and epsilon, in the order of the methods, then of the epsilons.

    Args:
        cells: records of `compare.json`.
        methods: in the order of the table.

    Returns:
        Rows with `method`, `epsilon`, `seeds` (finished), `failed`, figures as
        `{"mean", "standard_error"}` over the finished seeds (the standard error is None for one
        seed), and mean costs. `gap_closed` is the share of the way from the accuracy of the public
        model (0) to that of private fine-tuning (1), both means over their seeds; None where one of
        them is missing or the second is not above the first.
    """
    floor = _accuracy(cells, "public-only")
    ceiling = _accuracy(cells, "finetune-private")
    rows = []
    for method in methods:
        own = [cell for cell in cells if cell["method"] == method.name]
        budgets = sorted(
            {cell["epsilon"] for cell in own},
            key=lambda value: math.inf if value is None else value,
        )
        for epsilon in budgets:
            here = [cell for cell in own if cell["epsilon"] == epsilon]
            done = [cell for cell in here if cell["status"] == "finished"]
            row: dict[str, Any] = {
                "method": method.name,
                "epsilon": epsilon,
                "seeds": len(done),
                "failed": sum(cell["status"] == "failed" for cell in here),
                "planned": len(here),
            }
            row |= {key: _mean(_column(done, "quality", key)) for key in _QUALITY}
            row |= {key: _mean(_column(done, "texts", key)) for key in _TEXTS}
            row["gap_closed"] = _gap(
                _column(done, "quality", "next_token_accuracy"), floor, ceiling
            )
            for key in _COSTS:
                figure = _mean(_column(done, "costs", key))
                row[key] = None if figure is None else figure["mean"]
            rows.append(row)
    return rows


def _column(cells: Sequence[Mapping[str, Any]], part: str, key: str) -> list[float]:
    found = [(cell.get(part) or {}).get(key) for cell in cells]
    return [float(value) for value in found if value is not None]


def _mean(values: Sequence[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    error = None
    if len(values) > 1:
        spread = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
        error = math.sqrt(spread / len(values))
    return {"mean": mean, "standard_error": error}


def _accuracy(cells: Sequence[Mapping[str, Any]], method: str) -> float | None:
    done = [cell for cell in cells if cell["method"] == method and cell["status"] == "finished"]
    figure = _mean(_column(done, "quality", "next_token_accuracy"))
    return None if figure is None else figure["mean"]


def _gap(
    values: Sequence[float], floor: float | None, ceiling: float | None
) -> dict[str, float | None] | None:
    if floor is None or ceiling is None or ceiling <= floor:
        return None
    return _mean([(value - floor) / (ceiling - floor) for value in values])
