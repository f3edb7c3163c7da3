r"""Add the finished cells of comparisons that were run in pieces to a file of cells.

    python -m research.gathered_cells research/results/compare.jsonl \
        --data "abstracts of sealed users" PIECE PIECE ...

A piece is the folder of a comparison: of some of the methods, of some of the seeds,
on another machine. A line of the file is a cell as `compare.json` has it, with
`data` (what its text is), `users` and `minutes`; `research.compared_cells` makes the
table. A cell that the file has already is left as it is, so that the same command adds what has
finished since.

Lines of the same text and users belong together if as many users were held out, and users, delta
and the training of the downstream model are the same; seeds of one method and epsilon if its
settings are. Others are refused, and nothing is added. Lines of a version that did not say all of
that of themselves are taken as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.files import append_json_lines, read_json, read_json_lines

#: Of a cell of `compare.json`, what a line has.
_KEPT = (
    "method",
    "epsilon",
    "seed",
    "status",
    "error",
    "epsilon_release",
    "epsilon_known_cohorts",
    "delta",
    "quality",
    "distilled",
    "texts",
    "costs",
    "own_settings",
)

#: Of a comparison, what all lines of its text and users have in common.
_ALIKE = ("users", "delta", "downstream", "training", "max_texts")


def lines_of(piece: Path, *, data: str) -> list[dict[str, Any]]:
    """The finished cells of a comparison.

    Args:
        piece: its folder.
        data: what its text is.

    Raises:
        ConfigError: it holds none.
    """
    document = read_json(piece / "compare.json")
    if not document:
        raise ConfigError(f"{piece} holds no comparison: it has no compare.json that can be read")
    users = int(document["data"]["private_users"])
    return [
        {
            "data": data,
            "users": users,
            "minutes": _minutes(cell),
            **{key: cell.get(key) for key in _KEPT},
            "stamp": document["stamp"],
            "fixed": {
                "held_out_users": document["data"]["held_out_users"],
                **{key: document["fixed"][key] for key in _ALIKE},
            },
        }
        for cell in document["cells"]
        if cell["status"] == "finished"
    ]


def _minutes(cell: Mapping[str, Any]) -> float | None:
    """How long a cell took; None where nobody knows, as of one that was interrupted."""
    seconds = cell.get("wall_seconds", (cell.get("costs") or {}).get("wall_seconds"))
    return None if seconds is None else round(seconds / 60, 2)


def refuse_unlike(lines: Sequence[Mapping[str, Any]]) -> None:
    """Refuse lines that are of different comparisons.

    Args:
        lines: cells.

    Raises:
        ConfigError: two lines of the same text and users, or two seeds of one method, were measured
            in different ways.
    """
    first: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for line in lines:
        place = (line["data"], line["users"])
        method = (*place, line["method"], line["epsilon"])
        for key, said in ((place, line.get("fixed")), (method, line.get("own_settings"))):
            if said is not None and first.setdefault(key, said) != said:
                raise ConfigError(
                    f"cells of {', '.join(map(str, key))} are of different comparisons: "
                    f"{first[key]} and {said}"
                )


def _place(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[key] for key in ("data", "users", "method", "epsilon", "seed"))


def main(words: Sequence[str] | None = None) -> int:
    """Add the cells, and say how many."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", type=Path)
    parser.add_argument("pieces", nargs="+", type=Path)
    parser.add_argument("--data", required=True, help="what the text is, in the lines")
    options = parser.parse_args(words)
    try:
        lines = list(read_json_lines(options.cells))
        known = {_place(line) for line in lines}
        every = [line for piece in options.pieces for line in lines_of(piece, data=options.data)]
        refuse_unlike([*lines, *every])
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line in every:
            if _place(line) not in known:
                found.setdefault(_place(line), line)
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    append_json_lines(options.cells, list(found.values()))
    print(f"{len(found)} cells added, {len(lines) + len(found)} in {options.cells}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
