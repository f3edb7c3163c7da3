r"""Make the table that `privsyn advise` reads, of comparisons that were run.

    python -m research.measured_cells research/results/compare.jsonl ... > measured.json

A source is a file of JSON lines, one cell each with `data` and `users`. Of two cells of one method,
place and seed the first counts, so comparisons with other settings belong into a table of their
own. Lines with settings of their own (`public_text`,
`held_out`) are left out; variants of a method that somebody would choose have a name of their own.

`--with-ends FILE` are cells whose students learnt ends of texts, which is no longer the default. Of
them come those alone that no source has at the same users and epsilon, beside their own floor and
ceiling, as another kind of text: shares of two trainings are not to be put in one order.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flower_privsyn.catalogue import compared
from flower_privsyn.cli.advise import VARIANTS, MeasuredCell
from flower_privsyn.files import read_json_lines

#: Floor and ceiling of a place.
BOUNDS = ("public-only", "finetune-private")

#: That a number of an answer takes, where the clip norm is below 2.
_BYTES_A_NUMBER = 4

_OF_THEIR_OWN = ("public_text", "held_out")

#: Names of the measured table by those of a comparison.
CHOICES = {config.rpartition("/")[2]: named for named, config in VARIANTS.items()}


def cells_of(file: str) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """The cells of a file of lines, with their text and number of users."""
    for line in read_json_lines(Path(file)):
        if not any(key in line for key in _OF_THEIR_OWN):
            cell = {**line, "costs": costs_today(line)}
            if "bytes_a_number" not in line:  # what an older version's variants were has changed
                cell["method"] = CHOICES.get(str(line["method"]), line["method"])
            yield str(line["data"]), int(line["users"]), cell


def with_ends(
    file: str, known: Collection[tuple[str, int, Any, Any]]
) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """The cells of students with ends that were not measured without, under a name of their own.

    Args:
        file: of lines.
        known: text, users, method and epsilon of what was measured without ends.
    """
    for data, users, cell in cells_of(file):
        method, epsilon = cell["method"], cell["epsilon"]
        if method in BOUNDS or (data, users, method, epsilon) not in known:
            yield f"{data}, students with ends", users, cell


def costs_today(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a cell costs, of an older version too, whose numbers took more bytes up.

    Args:
        line: a cell; `bytes_a_number` where it is not of today.

    Returns:
        None where a cell has no costs, as private text that is fine-tuned on.
    """
    costs = line.get("costs")
    if costs is None:
        return None
    more = int(line.get("bytes_a_number", _BYTES_A_NUMBER)) - _BYTES_A_NUMBER
    return {**costs, "bytes_up": costs["bytes_up"] - more * costs["floats_up"]}


def collect(
    sources: Iterable[tuple[str, int, Mapping[str, Any]]], *, own: Sequence[str] = ()
) -> list[MeasuredCell]:
    """Put the cells of comparisons together.

    A floor is of the public model on the same kind of text, whoever took part; a ceiling is of the
    same users. Methods that neither the catalogue nor `own` has, as a comparison's variants, are
    left out, and so are cells that are not finished and those without a floor.

    Args:
        sources: of each cell what its text is, how many users took part, and its record of
            `compare.json`. Of two records of one seed the first counts.
        own: further methods, in their order.

    Returns:
        In the order of text, users, epsilon, and the catalogue.
    """
    order = list(dict.fromkeys([*compared(), *own]))
    records: dict[tuple[str, int, str, float | None, int], Mapping[str, Any]] = {}
    for data, users, cell in sources:
        if cell.get("status", "finished") == "finished" and cell["method"] in order:
            key = (data, users, str(cell["method"]), cell["epsilon"], int(cell["seed"]))
            records.setdefault(key, cell)
    groups: dict[tuple[str, int, str, float | None], list[Mapping[str, Any]]] = {}
    for (data, users, method, epsilon, _), cell in records.items():
        groups.setdefault((data, users, method, epsilon), []).append(cell)
    floors = {
        data: _accuracy(cells) for (data, _, name, _), cells in groups.items() if name == BOUNDS[0]
    }
    ceilings = {
        (data, users): _accuracy(cells)
        for (data, users, name, _), cells in groups.items()
        if name == BOUNDS[1]
    }
    found = [
        _cell(data, users, method, epsilon, cells, floors[data], ceilings.get((data, users)))
        for (data, users, method, epsilon), cells in groups.items()
        if epsilon is not None and data in floors and method != BOUNDS[0]
    ]
    return sorted(
        found, key=lambda one: (one.data, one.users, one.epsilon, order.index(one.method))
    )


def _cell(
    data: str,
    users: int,
    method: str,
    epsilon: float,
    cells: Sequence[Mapping[str, Any]],
    floor: float,
    ceiling: float | None,
) -> MeasuredCell:
    values = [float(cell["quality"]["next_token_accuracy"]) for cell in cells]
    costs = [cell.get("costs") or {} for cell in cells]
    seconds = [one["client_cpu_seconds"] for one in costs if one.get("client_cpu_seconds")]
    bits = [cell["quality"]["bits_per_byte"] for cell in cells]
    bits = [] if None in bits else bits
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return MeasuredCell(
        data=data,
        users=users,
        method=method,
        epsilon=epsilon,
        seeds=len(values),
        accuracy=_accuracy(cells),
        accuracy_error=error,
        bits_per_byte=statistics.fmean(map(float, bits)) if bits else None,
        floor=floor,
        ceiling=ceiling,
        bytes_up=max(int(one.get("bytes_up") or 0) for one in costs),
        bytes_down=max(int(one.get("bytes_down") or 0) for one in costs),
        client_cpu_seconds=statistics.fmean(seconds) if seconds else None,
    )


def _accuracy(cells: Sequence[Mapping[str, Any]]) -> float:
    return statistics.fmean(float(cell["quality"]["next_token_accuracy"]) for cell in cells)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--with-ends", action="append", default=[], metavar="FILE")
    arguments = parser.parse_args()
    found = [cell for source in arguments.sources for cell in cells_of(source)]
    known = {(data, users, cell["method"], cell["epsilon"]) for data, users, cell in found}
    found += [cell for file in arguments.with_ends for cell in with_ends(file, known)]
    cells = collect(found, own=tuple(VARIANTS))
    print(json.dumps({"cells": [asdict(cell) for cell in cells]}, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
