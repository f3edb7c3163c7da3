"""A comparison as `privsyn compare` would keep it: made-up figures, real shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flower_privsyn.evaluation.result import STAMP

PRIVATE = ["pre-text", "pe-sft", "popri", "kernel-sketch", "dp-fedavg", "dp-ftrl"]

_ACCURACY = {
    "pre-text": 0.262,
    "pe-sft": 0.2635,
    "popri": 0.281,
    "kernel-sketch": 0.2791,
    "dp-fedavg": 0.2722,
    "dp-ftrl": 0.2728,
}
_BYTES = {
    "pre-text": 11 * 8 * 2048,
    "pe-sft": 20 * 8 * 2000,
    "popri": 20 * 3267,
    "kernel-sketch": 32_963,
    "dp-fedavg": 20 * 3_000_000 * 4,
    "dp-ftrl": 20 * 3_000_000 * 4,
}
_ROUNDS = {"pre-text": 11, "kernel-sketch": 1}


def comparison(
    *,
    methods: list[str] | None = None,
    epsilons: tuple[float, ...] = (1.0, 7.0),
    seeds: int = 3,
) -> dict[str, Any]:
    """A finished comparison with one failed and one pending cell."""
    names = ["public-only", "expand-only", *(methods or PRIVATE), "finetune-private"]
    random = np.random.default_rng(0)
    cells: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for name in names:
        for budget in _budgets(name, epsilons):
            accuracies = []
            failed = 0
            for seed in range(seeds):
                cell = _cell(name, budget, seed, random)
                if (name, seed) == ("dp-ftrl", 1) and budget == epsilons[0]:
                    cell |= {
                        "status": "failed",
                        "error": "The nodes hold 12 users, but num-users = 3000 were planned <b>!",
                        "quality": None,
                        "texts": None,
                        "costs": None,
                        "spent": [],
                        "samples": [],
                    }
                    failed += 1
                else:
                    accuracies.append(cell["quality"]["next_token_accuracy"])
                cells.append(cell)
            summary.append(_line(name, budget, accuracies, failed))
    names.append("own-method")
    cells.append(
        {"method": "own-method", "epsilon": 1.0, "seed": 0, "status": "pending", "error": None}
    )
    return {
        "stamp": STAMP,
        "created": "2026-11-20T14:35:36+00:00",
        "finished": "2026-11-20T19:35:36+00:00",
        "command": "privsyn compare --users abstracts.jsonl --epsilons 1,7",
        "versions": {"flower-privsyn": "0.1.0", "flwr": "1.41.0", "torch": "2.13.0+cpu"},
        "machine": "x86_64, 2 cores",
        "data": {
            "name": "abstracts.jsonl",
            "private_users": 3000,
            "held_out_users": 500,
            "held_out_texts": 1730,
            "newer_than": None,
        },
        "downstream": "privsyn-tiny",
        "max_tokens": 64,
        "delta": 3e-05,
        "epsilons": list(epsilons),
        "seeds": list(range(seeds)),
        "methods": names,
        "titles": {"pre-text": "PrE-Text", "popri": "POPri", "pe-sft": "PE+SFT"},
        "cells": cells,
        "summary": summary,
        "embedding": _embedding(random),
    }


def _budgets(name: str, epsilons: tuple[float, ...]) -> tuple[float | None, ...]:
    if name in ("public-only", "expand-only"):
        return (0.0,)
    return (None,) if name == "finetune-private" else epsilons


def _accuracy(name: str, budget: float | None) -> float:
    if name == "public-only":
        return 0.2551
    if name == "expand-only":
        return 0.2562
    if budget is None:
        return 0.3513
    return _ACCURACY.get(name, 0.27) + 0.009 * math.log(budget)


def _cell(name: str, budget: float | None, seed: int, random: Any) -> dict[str, Any]:
    accuracy = _accuracy(name, budget) + float(random.normal()) * 0.002
    entropy = 5.0 - 4 * accuracy
    sent = name in _BYTES or bool(budget)
    rounds = _ROUNDS.get(name, 20) if sent else 0
    target = budget or 1.0
    return {
        "method": name,
        "epsilon": budget,
        "seed": seed,
        "status": "finished",
        "error": None,
        "run": f"runs/{name}-eps-{budget}-seed-{seed}" if sent else None,
        "epsilon_release": target if sent else 0.0,
        "epsilon_known_cohorts": target if sent else 0.0,
        "delta": 3e-05,
        "quality": {
            "next_token_accuracy": accuracy,
            "cross_entropy": entropy,
            "perplexity": math.exp(entropy),
            "bits_per_byte": entropy / 2.8,
            "user_next_token_accuracy": accuracy + 0.003,
        },
        "texts": {
            "frechet": 0.55 - accuracy + float(random.normal()) * 0.004,
            "mmd": 0.012,
            "precision": 0.6,
            "recall": 0.2,
            "mauve": None,
            "self_similarity": 0.3,
            "distinct_2": 0.7,
            "copies_exact": 0.0,
            "copies_near": 0.0,
        },
        "costs": {
            "rounds": rounds,
            "floats_up": _BYTES.get(name, 50_000) // 8 if sent else 0,
            "bytes_up": _BYTES.get(name, 50_000) if sent else 0,
            "floats_down": 1_000_000,
            "bytes_down": 2_000_000,
            "client_cpu_seconds": 1.2,
            "server_seconds": 200.1,
            "wall_seconds": 260.0,
        },
        "spent": [[n, target * math.sqrt(n / rounds)] for n in range(1, rounds + 1)],
        "samples": [
            f'We study <i>the case</i> of {name} & show that "text {seed}" number {number} '
            "goes on for a while, as abstracts do, with an argument and a bound on it. " * 3
            for number in range(5)
        ],
    }


def _line(name: str, budget: float | None, values: list[float], failed: int) -> dict[str, Any]:
    def figure(scale: float, shift: float = 0.0) -> dict[str, Any]:
        numbers = [shift + scale * value for value in values]
        error = float(np.std(numbers, ddof=1) / len(numbers) ** 0.5) if len(numbers) > 1 else None
        return {"mean": float(np.mean(numbers)), "standard_error": error}

    sent = budget != 0.0 and budget is not None
    return {
        "method": name,
        "epsilon": budget,
        "seeds": len(values),
        "failed": failed,
        "next_token_accuracy": figure(1.0),
        "perplexity": figure(-100, 70),
        "bits_per_byte": figure(-1.0, 2.0),
        "gap_closed": figure(10.0, -2.551),
        "frechet": figure(-1.0, 0.55),
        "mmd": figure(-0.05, 0.03),
        "rounds": _ROUNDS.get(name, 20) if sent else 0,
        "floats_up": _BYTES.get(name, 50_000) // 8 if sent else None,
        "bytes_up": _BYTES.get(name, 50_000) if sent else None,
        "bytes_down": 2_000_000 if sent else None,
        "client_cpu_seconds": 1.2,
        "server_seconds": 200.1,
    }


def _embedding(random: Any) -> dict[str, Any]:
    def cloud(x: float, y: float, count: int) -> list[list[float]]:
        points = random.normal(size=(count, 2)) * [0.18, 0.12] + [x, y]
        return [[float(a), float(b)] for a, b in points]

    return {
        "explained": [0.08, 0.05],
        "held_out": cloud(0.0, 0.0, 700),
        "methods": {
            name: {
                str(number): cloud(0.5 - 0.02 * number, 0.2 - 0.005 * number, 192)
                for number in (0, 10, 20)
            }
            for name in ("pre-text", "popri", "kernel-sketch")
        },
    }
