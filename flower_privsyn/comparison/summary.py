"""From cells to a document: means and standard errors over seeds, and the gap that was closed."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from flower_privsyn import files
from flower_privsyn.comparison.plan import Plan
from flower_privsyn.environment import library_versions
from flower_privsyn.strategies.catalogue import ComparedMethod

#: Figures of `quality` and of `texts` that the table has.
_QUALITY = ("next_token_accuracy", "perplexity", "bits_per_byte")
_TEXTS = ("frechet", "mmd", "mauve", "self_similarity", "copies", "copies_held_out")
_LABELS = ("synthetic", "majority", "public", "private")
_COSTS = (
    "rounds",
    "floats_up",
    "bytes_up",
    "floats_down",
    "bytes_down",
    "client_cpu_seconds",
    "server_seconds",
)


def document_of(
    plan: Plan,
    cells: Sequence[Mapping[str, Any]],
    *,
    command: str,
    created: str | None,
    fixed: Mapping[str, Any],
) -> dict[str, Any]:
    """What `compare.json` holds.

    Args:
        plan: what is compared.
        cells: what is known of each, in the order in which they are run.
        command: how the comparison was asked for.
        created: when it was begun; None for this moment.
        fixed: what continuing it must not change.
    """
    results = [
        {key: cell[key] for key in cell if key not in ("settings", "stamp")} for cell in cells
    ]
    versions = library_versions("flower-privsyn", "flwr", "torch", "transformers", "trl", "peft")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    complete = all(cell["status"] in ("finished", "failed") for cell in results)
    return {
        "stamp": plan.stamp,
        "created": created or files.now(),
        "finished": files.now() if complete else None,
        "command": command,
        "versions": {name: version for name, version in versions.items() if version},
        "machine": f"{platform.machine()}, {cores} cores, Python {platform.python_version()}",
        "data": {
            "name": plan.people.source,
            "private_users": len(plan.people.private),
            "private_texts": len(plan.people.private.texts),
            "held_out_users": len(plan.people.held_out),
            "held_out_texts": len(plan.people.held_out.texts),
            "newer_than": plan.people.newer_than or None,
        },
        "downstream": plan.downstream,
        "max_tokens": plan.training.max_tokens,
        "delta": plan.delta,
        "epsilons": list(plan.epsilons),
        "seeds": list(plan.seeds),
        "methods": [method.name for method in plan.methods],
        "titles": {method.name: method.title for method in plan.methods},
        "kinds": {method.name: method.kind for method in plan.methods},
        "fixed": fixed,
        "cells": results,
        "summary": summarise(results, plan.methods),
    }


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
        seed), mean costs, and the mean `local_epsilon_sample` and `local_epsilon_user` of methods
        with an epsilon of their own. `gap_closed` is the share of the way from the accuracy of the
        public model (0) to that of private fine-tuning (1), both means over their seeds; None where
        one of them is missing or the second is not above the first. `distilled_accuracy` and
        `distilled_bits_per_byte` are of the students that were taught by the writer of their text;
        `distilled_gap` is their share of the way from public text at random, taught as well, to
        private text, taught as well, and that of the student itself where a method has no other.
        `label_synthetic` and the like are of methods with classes: see `Measures.labels`.
    """
    gap = (_accuracy(cells, "public-only"), _accuracy(cells, "finetune-private"))
    distilled_gap = (
        _accuracy(cells, "distill-public"),
        _accuracy(cells, "finetune-private", part="distilled"),
    )
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
            own_students = _column(done, "quality", "next_token_accuracy")
            row |= {f"label_{key}": _mean(_column(done, "labels", key)) for key in _LABELS}
            row["gap_closed"] = _gap(own_students, *gap)
            taught = _column(done, "distilled", "next_token_accuracy")
            row["distilled_accuracy"] = _mean(taught)
            row["distilled_bits_per_byte"] = _mean(_column(done, "distilled", "bits_per_byte"))
            # Itself the floor of the taught ones.
            alone = method.trains_student or method.name == "distill-public"
            row["distilled_gap"] = _gap(own_students if alone else taught, *distilled_gap)
            for key in ("sample", "user"):
                local = _mean(_column(done, "local_epsilon", key))
                row[f"local_epsilon_{key}"] = None if local is None else local["mean"]
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
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}


def _accuracy(
    cells: Sequence[Mapping[str, Any]], method: str, *, part: str = "quality"
) -> float | None:
    done = [cell for cell in cells if cell["method"] == method and cell["status"] == "finished"]
    figure = _mean(_column(done, part, "next_token_accuracy"))
    return None if figure is None else figure["mean"]


def _gap(
    values: Sequence[float], floor: float | None, ceiling: float | None
) -> dict[str, float | None] | None:
    if floor is None or ceiling is None or ceiling <= floor:
        return None
    return _mean([(value - floor) / (ceiling - floor) for value in values])
