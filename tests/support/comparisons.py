"""A comparison as `privsyn compare` would keep it: made-up figures, real shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_privsyn.catalogue import compared
from flower_privsyn.comparison.run import summarise
from flower_privsyn.evaluation.result import STAMP

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
    for cell in cells:
        if (cell["method"], cell["epsilon"], cell["seed"]) == ("dp-ftrl", epsilons[0], 1):
            lost = dict.fromkeys(("quality", "texts", "costs", "spent", "samples"))
            sentence = "The nodes hold 12 users, but num-users = 3000 were planned <b>!"
            cell.update({**lost, "status": "failed", "error": sentence})
    cells.append(
        {
            "method": "own-method",
            "title": "own-method",
            "kind": "synthetic text",
            "epsilon": 1.0,
            "seed": 0,
            "status": "pending",
        }
    )
    return {
        "stamp": STAMP,
        "created": "2026-11-20T14:35:36+00:00",
        "commands": ["privsyn compare --users abstracts.jsonl --epsilons 1,7"],
        "versions": {"flower-privsyn": "0.1.0", "flwr": "1.41.0"},
        "machine": "x86_64, 2 cores",
        "data": {"name": "abstracts.jsonl", "private_users": 3000, "held_out_users": 500},
        "downstream": "privsyn-tiny",
        "delta": 3e-05,
        "cells": cells,
        "summary": summarise(cells),
    }


def _cell(name: str, budget: float | None, seed: int, random: Any) -> dict[str, Any]:
    base, size, rounds = PRIVATE.get(name, (0.27, 50_000, 20))
    accuracy = _OTHERS[name][1] if name in _OTHERS else base + 0.009 * math.log(budget or 1)
    accuracy += float(random.normal()) * 0.002
    sent = name not in _OTHERS
    spent = budget if sent else 0.0
    known = compared().get(name)
    return {
        "method": name,
        "title": "PE+SFT" if name == "pe-sft" else known.title if known else name,
        "kind": known.kind if known else "synthetic text",
        "epsilon": budget,
        "seed": seed,
        "status": "finished",
        "error": None,
        "run": f"runs/{name}-eps-{budget}-seed-{seed}" if sent else None,
        "epsilon_release": spent,
        "epsilon_known_cohorts": spent,
        "delta": 3e-05,
        "quality": {"next_token_accuracy": accuracy, "cross_entropy": 5 - 4 * accuracy},
        "texts": {"frechet": 0.55 - accuracy, "mauve": None},
        "costs": {"rounds": rounds, "bytes_up": size if sent else 0, "wall_seconds": 260.0},
        "spent": [[n, spent * math.sqrt(n / rounds)] for n in range(1, rounds + 1)] if sent else [],
        "samples": [f'"Text {n}" of <i>{name}</i> & so on. ' * 9 for n in range(5)],
    }
