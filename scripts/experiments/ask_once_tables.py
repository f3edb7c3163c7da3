"""Print comparisons that were run in parts as one table each, over all of their seeds.

    python scripts/experiments/ask_once_tables.py COMPARISON [COMPARISON ...] [--results FILE]

`privsyn compare` writes the table of the methods and seeds that it was asked for last. This one is
of all cells that lie in the folder, however many seeds each method has; the second folder and later
ones may hold parts (other methods on the same users) of the first, whose floor and ceiling count.
With `--results` the figures of every cell are written as JSON lines, without any text.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

FLOOR, CEILING = "public-only", "finetune-private"


def cells(folders: list[Path]) -> list[dict[str, Any]]:
    """The finished cells, a method's of the first folder that has it at that epsilon and seed."""
    found: dict[tuple[str, Any, int], dict[str, Any]] = {}
    for folder in folders:
        for file in sorted(folder.glob("cells/*/cell.json")):
            cell = json.loads(file.read_text(encoding="utf-8"))
            if cell["status"] == "finished":
                found.setdefault((cell["method"], cell["epsilon"], cell["seed"]), cell)
    return list(found.values())


def line(group: list[dict[str, Any]], floor: float, ceiling: float | None) -> str:
    """One method at one epsilon."""

    def told(values: list[float], digits: int) -> str:
        mean = f"{np.mean(values):.{digits}f}"
        if len(values) == 1:
            return mean
        return f"{mean} ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"

    accuracy = [100 * cell["quality"]["next_token_accuracy"] for cell in group]
    bits = [cell["quality"]["bits_per_byte"] for cell in group]
    costs = group[0].get("costs") or {}
    gap = "-"
    if ceiling is not None:
        gap = f"{100 * (float(np.mean(accuracy)) - floor) / (ceiling - floor):.0f}"
    up = f"{costs['bytes_up'] / 1000:,.0f}" if costs.get("bytes_up") else "-"
    budget = "∞" if group[0]["epsilon"] is None else f"{group[0]['epsilon']:g}"
    return (
        f"| `{group[0]['method']}` | {budget} | {len(group)} | {told(accuracy, 2)} | {gap} | "
        f"{told(bits, 4)} | {up} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparisons", nargs="+", type=Path)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    groups: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for cell in cells(arguments.comparisons):
        groups.setdefault((cell["method"], cell["epsilon"]), []).append(cell)

    def mean(method: str) -> float | None:
        known = [cell for key, group in groups.items() if key[0] == method for cell in group]
        values = [100 * cell["quality"]["next_token_accuracy"] for cell in known]
        return float(np.mean(values)) if values else None

    floor, ceiling = mean(FLOOR), mean(CEILING)
    if floor is None:
        raise SystemExit(f"there is no cell of {FLOOR}")
    print("| method | ε | seeds | next-token accuracy, % | gap closed, % | bits per byte | kB up |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for group in groups.values():
        print(line(group, floor, ceiling))
    if arguments.results:
        kept = ("stamp", "method", "epsilon", "seed", "quality", "costs")
        with arguments.results.open("w", encoding="utf-8") as file:
            for group in groups.values():
                for cell in group:
                    file.write(json.dumps({key: cell.get(key) for key in kept}) + "\n")


if __name__ == "__main__":
    main()
