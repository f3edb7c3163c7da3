r"""Add the finished cells of comparisons that were run in pieces to a file of cells.

    python -m research.gathered_cells research/results/compare.jsonl \
        --data "abstracts of sealed users" PIECE PIECE ...

A piece is the folder of a comparison: of some of the methods, of some of the seeds
(`--first-seed`), on another machine. A line of the file is a cell as `compare.json` has it, with
`data` (what its text is), `users` and `minutes`; `research.compared_cells` makes the
table. A cell that the file has already is left as it is, so that the same command adds what has
finished since.

Pieces belong together if they held out as many users and trained the same downstream model in the
same way; pieces of as many users also if those users and delta are the same; seeds of one method
and epsilon if its settings are. Others are refused, and nothing is added. The lines of the file say
all of that of themselves, so that a later call refuses what does not belong to them; those of a
version that did not say it are taken as they are.
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

#: Of a comparison, what all lines of one file have in common.
_ALIKE = ("downstream", "training", "max_texts")


def lines_of(document: Mapping[str, Any], *, data: str) -> list[dict[str, Any]]:
    """The finished cells of a comparison.

    Args:
        document: its `compare.json`.
        data: what its text is.
    """
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
                **{key: document["fixed"][key] for key in (*_ALIKE, "users")},
            },
        }
        for cell in document["cells"]
        if cell["status"] == "finished"
    ]


def _minutes(cell: Mapping[str, Any]) -> float | None:
    """How long a cell took; None where nobody knows, as of one that was interrupted."""
    seconds = cell.get("wall_seconds", (cell.get("costs") or {}).get("wall_seconds"))
    return None if seconds is None else round(seconds / 60, 2)


def gather(
    documents: Mapping[str, Mapping[str, Any]], known: Sequence[Mapping[str, Any]], *, data: str
) -> list[dict[str, Any]]:
    """The cells that are not known yet.

    Args:
        documents: of each piece, by its name.
        known: lines of earlier pieces.
        data: what the text is.

    Raises:
        ConfigError: two pieces do not belong together, or one does not to the lines of as many
            users of the same text that are known.
    """
    first: tuple[str, Any] | None = None
    people: dict[int, tuple[str, Any]] = {}
    for name, document in documents.items():
        users = int(document["data"]["private_users"])
        alike = {
            "held_out_users": document["data"]["held_out_users"],
            "stamp": document["stamp"],
            **{key: document["fixed"][key] for key in _ALIKE},
        }
        first = first or (name, alike)
        _refuse_unlike(first, (name, alike))
        own = {key: document["fixed"][key] for key in ("users", "delta")}
        _refuse_unlike(people.setdefault(users, (name, own)), (name, own))
        _refuse_unlike(
            ("the file", _of_lines(known, data=data, users=users)),
            (name, {**alike, **own}),
        )
    seen = {_place(line) for line in known}
    settings: dict[tuple[Any, ...], tuple[str, Any]] = {}
    for line in known:
        if line.get("own_settings") is not None:
            settings.setdefault(_method(line), ("the file", line["own_settings"]))
    found = []
    for name, document in documents.items():
        for line in lines_of(document, data=data):
            if line["own_settings"] is not None:
                here = (name, line["own_settings"])
                _refuse_unlike(settings.setdefault(_method(line), here), here, strictly=True)
            if _place(line) not in seen:
                seen.add(_place(line))
                found.append(line)
    return found


def _of_lines(known: Sequence[Mapping[str, Any]], *, data: str, users: int) -> dict[str, Any]:
    """What lines of the same place say of how they were measured."""
    own = [line for line in known if (line["data"], line["users"]) == (data, users)]
    found: dict[str, Any] = {}
    for line in own:
        found |= {key: line[key] for key in ("stamp", "delta") if line.get(key) is not None}
        found |= line.get("fixed") or {}
    return found


def _refuse_unlike(
    one: tuple[str, Mapping[str, Any]],
    other: tuple[str, Mapping[str, Any]],
    *,
    strictly: bool = False,
) -> None:
    for key in sorted(one[1].keys() | other[1].keys()):
        # A setting that one of them does not have is the app's there; else it is an older line.
        pair = one[1].get(key), other[1].get(key)
        if pair[0] != pair[1] and (strictly or None not in pair):
            raise ConfigError(
                f"{one[0]} and {other[0]} are of different comparisons: {key} is {pair[0]!r} "
                f"and {pair[1]!r}"
            )


def _method(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[key] for key in ("data", "users", "method", "epsilon"))


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
        known = list(read_json_lines(options.cells))
        documents = {str(piece): _read(piece) for piece in options.pieces}
        found = gather(documents, known, data=options.data)
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    append_json_lines(options.cells, found)
    print(f"{len(found)} cells added, {len(known) + len(found)} in {options.cells}")
    return 0


def _read(piece: Path) -> dict[str, Any]:
    found = read_json(piece / "compare.json")
    if not found:
        raise ConfigError(f"{piece} holds no comparison: it has no compare.json that can be read")
    return found


if __name__ == "__main__":
    sys.exit(main())
