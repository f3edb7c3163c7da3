"""What methods gave to kinds of people: shares of the gap in bits, by groups of a comparison.

    python -m research.groups FOLDER SEED [COLUMN DATA]

FOLDER is what `privsyn compare` wrote at one epsilon, with a public model and a ceiling. People are
grouped by the beginning of their ids, up to ":", or of what a column of the data says of them, up
to "."; of the people who are measured a group has 30 or more. In brackets: of how many of them, in
percent, the text is predicted worse than by the public model.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.comparison.measures import USERS_FILE
from flower_privsyn.data.read import files_below, json_values
from flower_privsyn.files import read_json, read_json_lines
from research.gap_picture import ENDS

Counts = NDArray[np.float64]
LEAST = 30


def bits(people: Counts) -> float:
    """Per byte, of (n, 4) tokens, right ones, nats and bytes of each of n people."""
    return float(people[:, 2].sum() / people[:, 3].sum() / np.log(2.0))


def kinds(column: str, data: Path) -> dict[str, str]:
    """What a column says of each person, up to "."."""
    files = files_below(data) if data.is_dir() else [data]
    rows = (row for file in files for _, row in json_values(file) if isinstance(row, dict))
    return {str(row["client_id"]): str(row.get(column) or "none").partition(".")[0] for row in rows}


def groups(folder: Path, seed: int, kind_of: dict[str, str]) -> Iterator[str]:
    """A line of a table for each group, the largest first."""
    counts = {
        (cell["method"], cell["title"]): np.load(file.with_name(USERS_FILE))
        for file in sorted(folder.glob("cells/*/cell.json"))
        if (cell := read_json(file)).get("status") == "finished"
        and (cell["seed"] == seed or cell["method"] == ENDS[0])
    }
    public, ceiling = (next(c for (name, _), c in counts.items() if name == end) for end in ENDS)
    compared = {title: c for (name, title), c in counts.items() if name not in ENDS}

    def people(file: str) -> list[str]:
        found = dict.fromkeys(line["client_id"] for line in read_json_lines(folder / "data" / file))
        return [kind_of.get(user, user.partition(":")[0]) for user in found]

    asked, places = Counter(people(f"private-{seed}.jsonl")), defaultdict(list)
    for place, kind in enumerate(people("held_out.jsonl")):
        places[kind].append(place)
    yield "| people | asked | measured | " + " | ".join(compared) + " |"
    yield "|---|---:|---:|" + "---:|" * len(compared)
    for name, here in sorted(places.items(), key=lambda group: -len(group[1])):
        if len(here) < LEAST:
            continue
        least, most = bits(public[here]), bits(ceiling[here])
        said = [
            f"{100 * (least - bits(c[here])) / (least - most):z.0f} "
            f"({100 * np.mean(c[here, 2] > public[here, 2]):.0f})"
            for c in compared.values()
        ]
        yield f"| {name} | {asked[name]:,} | {len(here):,} | " + " | ".join(said) + " |"


if __name__ == "__main__":
    compared, seed, *given = sys.argv[1:]
    found = kinds(given[0], Path(given[1])) if given else {}
    for row in groups(Path(compared), int(seed), found):
        print(row)
