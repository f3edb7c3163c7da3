"""A comparison as `privsyn compare` would keep it: made-up figures, real shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.strategies.catalogue import compared

#: Of each private method: accuracy at epsilon 1, bytes uploaded, rounds.
PRIVATE = {
    "pre-text": (0.262, 180_000, 11),
    "pe-sft": (0.2635, 320_000, 20),
    "popri": (0.281, 65_000, 20),
    "dp-fedavg": (0.2722, 240_000_000, 20),
    "dp-ftrl": (0.2728, 240_000_000, 20),
}

_OTHERS = {"public-only": (0.0, 0.2551), "finetune-private": (None, 0.3513)}


def comparison(
    *, methods: list[str] | None = None, epsilons: tuple[float, ...] = (1.0, 7.0), seeds: int = 2
) -> dict[str, Any]:
    """A comparison with a pending cell, and, with DP-FTRL and two seeds, a failed one."""
    random = np.random.default_rng(0)
    names = ["public-only", *(methods or PRIVATE), "finetune-private"]
    cells: list[dict[str, Any]] = []
    for name in names:
        for budget in (_OTHERS[name][0],) if name in _OTHERS else epsilons:
            cells += [_cell(name, budget, seed, random) for seed in range(seeds)]
    places = dict.fromkeys((cell["method"], cell["epsilon"]) for cell in cells)
    for cell in cells:
        if (cell["method"], cell["epsilon"], cell["seed"]) == ("dp-ftrl", epsilons[0], 1):
            lost = dict.fromkeys(("quality", "texts", "costs", "spent", "samples"))
            sentence = "The nodes hold 12 users, but num-users = 3000 were planned <b>!"
            cell.update({**lost, "status": "failed", "error": sentence})
    summary = [_line(cells, *place) for place in places]
    pending = {"method": "own-method", "epsilon": 1.0, "seed": 0, "status": "pending"}
    return {
        "stamp": STAMP,
        "created": "2026-11-20T14:35:36+00:00",
        "finished": "2026-11-20T19:35:36+00:00",
        "command": "privsyn compare --users abstracts.jsonl --epsilons 1,7",
        "versions": {"flower-privsyn": "0.1.0", "flwr": "1.41.0"},
        "machine": "x86_64, 2 cores",
        "data": {"name": "abstracts.jsonl", "private_users": 3000, "held_out_users": 500},
        "downstream": "privsyn-tiny",
        "max_tokens": 64,
        "delta": 3e-05,
        "epsilons": list(epsilons),
        "seeds": list(range(seeds)),
        "methods": [*names, "own-method"],
        "titles": {
            **{name: compared()[name].title if name in compared() else name for name in names},
            "pe-sft": "PE+SFT",
            "own-method": "own-method",
        },
        "cells": [*cells, pending],
        "summary": summary,
    }


def _cell(name: str, budget: float | None, seed: int, random: Any) -> dict[str, Any]:
    base, size, rounds = PRIVATE.get(name, (0.27, 50_000, 20))
    accuracy = _OTHERS[name][1] if name in _OTHERS else base + 0.009 * math.log(budget or 1)
    accuracy += float(random.normal()) * 0.002
    sent = name not in _OTHERS
    spent = budget if sent else 0.0
    return {
        "method": name,
        "epsilon": budget,
        "seed": seed,
        "status": "finished",
        "error": None,
        "run": f"runs/{name}-eps-{budget}-seed-{seed}" if sent else None,
        "epsilon_release": spent,
        "epsilon_known_cohorts": spent,
        "delta": 3e-05,
        "quality": {"next_token_accuracy": accuracy, "cross_entropy": 5 - 4 * accuracy},
        "texts": {"frechet": 0.55 - accuracy, "mmd": 0.012, "mauve": None, "distinct_2": 0.7},
        "costs": {"rounds": rounds, "bytes_up": size if sent else 0, "wall_seconds": 260.0},
        "spent": [[n, spent * math.sqrt(n / rounds)] for n in range(1, rounds + 1)] if sent else [],
        "samples": [f'"Text {n}" of <i>{name}</i> & so on. ' * 9 for n in range(5)],
    }


def _line(cells: list[dict[str, Any]], name: str, budget: float | None) -> dict[str, Any]:
    found = [c for c in cells if (c["method"], c["epsilon"]) == (name, budget)]
    values = [c["quality"]["next_token_accuracy"] for c in found if c["quality"]]

    def figure(scale: float, shift: float = 0.0) -> dict[str, Any]:
        numbers = shift + scale * np.array(values)
        error = float(numbers.std(ddof=1) / len(numbers) ** 0.5) if len(numbers) > 1 else None
        return {"mean": float(numbers.mean()), "standard_error": error}

    sent = name not in _OTHERS
    return {
        "method": name,
        "epsilon": budget,
        "seeds": len(values),
        "failed": len(found) - len(values),
        "planned": len(found),
        "next_token_accuracy": figure(1.0),
        "perplexity": figure(-100, 70),
        "gap_closed": figure(10.0, -2.551),
        "frechet": figure(-1.0, 0.55),
        "bits_per_byte": None,
        "rounds": PRIVATE.get(name, (0, 0, 20))[2] if sent else 0,
        "bytes_up": PRIVATE.get(name, (0, 50_000))[1] if sent else None,
        "bytes_down": 2_000_000 if sent else None,
        "client_cpu_seconds": 1.2,
    }
