r"""The table of comparisons that were run in pieces, of a file of their cells.

    python -m research.compared_cells research/results/compare.jsonl \
        --data "abstracts of sealed users" --users 3000

A line of the file is a cell as `compare.json` has it, with `data` and `users`; a comparison that
was split over machines or days is gathered by adding the lines of its pieces. The table is the one
of `comparison.md`. Means are over the seeds that are there, so that a method's may be of fewer than
another's: the first column says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from flower_privsyn.catalogue import ComparedMethod
from flower_privsyn.comparison import APP
from flower_privsyn.comparison.plan import methods_of
from flower_privsyn.comparison.run import summarise
from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.files import read_json_lines
from flower_privsyn.host.app import load_app
from flower_privsyn.report.comparison import markdown

CONFIGS = ("cpu", "hybrid", "ask-once", "from-distilled")


def table_of(
    lines: Sequence[Mapping[str, Any]],
    *,
    data: str,
    users: int,
    held_out: int,
    downstream: str,
) -> str:
    """The table of the cells of some users.

    Args:
        lines: cells, with `data` and `users`.
        data: what their text is.
        users: how many took part.
        held_out: how many users the models were measured on.
        downstream: the model that was trained.

    Raises:
        ConfigError: there is no such cell, two cells are of one place and seed, their stamps or
            deltas differ, or nobody knows a method.
    """
    cells = cells_of(lines, data=data, users=users)
    methods, rows = summary_of(cells)
    seeds = sorted({cell["seed"] for cell in cells})
    for row in rows:
        # One that no seed changes was run once.
        row["planned"] = len(seeds) if methods[row["method"]].seeded else row["seeds"]
    deltas = {cell["delta"] for cell in cells if cell.get("delta")}
    return markdown(
        {
            "stamp": cells[0]["stamp"],
            "summary": rows,
            "cells": named(cells)[1],
            "data": {"name": data, "private_users": users, "held_out_users": held_out},
            "downstream": downstream,
            "delta": deltas.pop() if deltas else float("nan"),
        }
    )


def cells_of(
    lines: Sequence[Mapping[str, Any]], *, data: str, users: int
) -> list[Mapping[str, Any]]:
    """The cells of some users, each of a method, an epsilon and a seed of its own.

    Args:
        lines: cells, with `data` and `users`.
        data: what their text is.
        users: how many took part.

    Raises:
        ConfigError: there is no such cell, two cells are of one place and seed, or their stamps or
            deltas differ.
    """
    cells = [line for line in lines if (line["data"], line["users"]) == (data, users)]
    if not cells:
        raise ConfigError(f"no cell is of {users} users of {data}")
    places = [(cell["method"], cell["epsilon"], cell["seed"]) for cell in cells]
    if twice := sorted({str(place) for place in places if places.count(place) > 1}):
        raise ConfigError(f"two cells are of one place: {', '.join(twice)}")
    stamps = {cell["stamp"] for cell in cells}
    deltas = {cell["delta"] for cell in cells if cell.get("delta")}
    if len(stamps) != 1 or len(deltas) > 1:
        raise ConfigError("the cells are of different comparisons: stamps or deltas differ")
    return cells


def named(
    cells: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, ComparedMethod], list[dict[str, Any]]]:
    """All methods that there are, and the cells in their order, with what each is called.

    Args:
        cells: of one place (`cells_of`).

    Raises:
        ConfigError: nobody knows a method.
    """
    methods = methods_of(load_app(APP), *CONFIGS)
    if unknown := sorted({cell["method"] for cell in cells} - methods.keys()):
        raise ConfigError(f"no settings of {', '.join(CONFIGS)} are called {', '.join(unknown)}")
    order = list(methods)

    def place(cell: Mapping[str, Any]) -> tuple[int, float, int]:
        budget = inf if cell["epsilon"] is None else cell["epsilon"]
        return order.index(cell["method"]), budget, cell["seed"]

    return methods, [
        {**cell, "title": methods[cell["method"]].title, "kind": methods[cell["method"]].kind}
        for cell in sorted(cells, key=place)
    ]


def summary_of(
    cells: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, ComparedMethod], list[dict[str, Any]]]:
    """All methods that there are, and a row of means for every one that was run, in their order.

    A row has `taught`, too: the mean accuracy of a second student that some cells have, taught by
    the generator of its text; None where none has.

    Args:
        cells: of one place (`cells_of`).

    Raises:
        ConfigError: nobody knows a method.
    """
    methods, known = named(cells)
    rows = summarise(known)
    for row in rows:
        taught = [
            cell["distilled"]["next_token_accuracy"]
            for cell in known
            if (cell["method"], cell["epsilon"]) == (row["method"], row["epsilon"])
            and cell.get("distilled")
        ]
        row["taught"] = fmean(taught) if taught else None
    return methods, rows


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--held-out-users", type=int, default=1500)
    parser.add_argument("--downstream", default="privsyn-tiny")
    options = parser.parse_args(words)
    return printed(
        lambda: table_of(
            list(read_json_lines(options.cells)),
            data=options.data,
            users=options.users,
            held_out=options.held_out_users,
            downstream=options.downstream,
        )
    )


def printed(table: Callable[[], str]) -> int:
    """Print a table, or the sentence that says why there is none; returns the exit status.

    Args:
        table: makes it.
    """
    try:
        print(table())
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
