"""What `benchmarks.scale` has measured, as a table, sentences and a plot."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

_COLUMNS = (
    "question",
    "users",
    "in a round",
    "nodes",
    "s, first round",
    "s, later ones",
    "CPU s, all processes",
    "CPU-ms a user, nodes",
    "floor, CPU s",
    "peak memory, GiB",
    "preparing: s",
    "peak, GiB",
    "load",
)
HEAD = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|"


def _way(line: dict[str, Any]) -> bool:
    """Whether a line was measured in one process; it is not compared with one that was not."""
    return bool(line.get("in_process"))


def row(line: dict[str, Any]) -> str:
    """A line of the table."""
    asked = line["users"] if line["participation"] == "full" else int(line["participation"])
    floor = line["floor_operations"] / line["machine"]["operations_per_cpu_second"]
    return (
        f"| {line['method']} | {line['users']:,} | {line['participation']} | {line['nodes']} "
        f"| {line['seconds_first_round']:.1f} | {line['seconds_round']:.1f} "
        f"| {line['cpu_seconds_round']:.1f} "
        f"| {1000 * line['cpu_seconds_nodes_round'] / asked:.3f} | {floor:.2f} "
        f"| {line['peak_bytes'] / 2**30:.2f} {_prepared(line.get('preparing'))} "
        f"| {line['load_before']:.0f}-{line['load_after']:.0f} |"
    )


def _prepared(preparing: dict[str, float] | None) -> str:
    """Of the run that put the records on the disk, where it was measured."""
    if preparing is None:
        return "| | "
    return f"| {preparing['seconds_before']:.0f} | {preparing['peak_bytes'] / 2**30:.2f}"


def latest(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last measurement of every point of the grid, in order."""
    points: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        place = line["participation"] != "full", line["users"], line["nodes"]
        points[_way(line), line["method"], *place] = line
    return [points[point] for point in sorted(points)]


def table(source: Path, picture: Path | None) -> None:
    """Print the table of a file of lines and what follows from it, and draw it.

    Args:
        source: JSON, as `benchmarks.scale measure` writes it.
        picture: where to draw; None for nowhere.
    """
    lines = latest(json.loads(source.read_text(encoding="utf-8"))["lines"])
    print("\n".join([HEAD, *map(row, lines)]))
    growth(lines)
    if picture:
        plot(lines, picture)


def growth(lines: list[dict[str, Any]]) -> None:
    """Print how seconds and CPU seconds grow with users and with nodes."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in lines:
        key = (line["method"], line["participation"], _way(line))
        groups.setdefault(key, []).append(line)
    print()
    for (method, participation, _), members in groups.items():
        for one in members:
            for other in members:
                more = [
                    (name, other[name] / one[name])
                    for name, fixed in (("users", "nodes"), ("nodes", "users"))
                    if other[name] > one[name] and other[fixed] == one[fixed]
                ]
                if len(more) == 1 and more[0][1] <= 14:
                    print(
                        f"{method}, {participation}: {more[0][1]:.3g} times the {more[0][0]} "
                        f"({one[more[0][0]]:,} to {other[more[0][0]]:,}): "
                        f"{other['seconds_round'] / one['seconds_round']:.2f} times the seconds, "
                        f"{other['cpu_seconds_round'] / one['cpu_seconds_round']:.2f} times the "
                        "CPU seconds"
                    )


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    """CPU seconds of a round and peak memory over the number of users, log-log."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    nodes = statistics.mode(line["nodes"] for line in lines)
    # Of the ways, the one with more points: CPU seconds of two are not one curve.
    way = statistics.mode(map(_way, lines))
    lines = [line for line in lines if line["nodes"] == nodes and _way(line) == way]
    for place, method in enumerate(sorted({line["method"] for line in lines})):
        for participation, style in (("full", "o-"), ("1000", "s--")):
            chosen = [
                line
                for line in lines
                if (line["method"], line["participation"]) == (method, participation)
            ]
            if not chosen:
                continue
            users = [line["users"] for line in chosen]
            label = f"{method}, {'all' if participation == 'full' else '1,000'}"
            color = f"C{place}"
            cpu = [line["cpu_seconds_round"] for line in chosen]
            left.loglog(users, cpu, style, color=color, label=label, markersize=4)
            memory = [line["peak_bytes"] / 2**30 for line in chosen]
            right.loglog(users, memory, style, color=color, markersize=4)
            if participation == "full":
                floor = [
                    line["floor_operations"] / line["machine"]["operations_per_cpu_second"]
                    for line in chosen
                ]
                left.loglog(users, floor, ":", color=color, linewidth=1)
    left.set(xlabel="users", ylabel="CPU seconds", title="of a round (dotted: floor)")
    right.set(xlabel="users", ylabel="GiB", title="peak memory of all processes")
    right.axhline(6, color="grey", linewidth=0.8)
    left.legend(fontsize=7)
    for axes in (left, right):
        axes.grid(visible=True, which="major", linewidth=0.3)
    figure.savefig(path, dpi=130)
