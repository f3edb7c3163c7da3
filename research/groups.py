"""What methods gave to kinds of people: shares of the gap in bits, by groups of a comparison.

    python -m research.groups FOLDER SEED [COLUMN DATA]

FOLDER is what `privsyn compare` wrote at one epsilon, with a public model and a ceiling. People are
grouped by the beginning of their ids, up to ":", or of what a column of the data says of them, up
to "."; of the people who are measured a group has 30 or more. Beside a share its 95 % interval over
them; in brackets of how many, in percent, the text is predicted worse than by the public model.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flower_privsyn.comparison.measures import USERS_FILE
from flower_privsyn.comparison.run import summarise
from flower_privsyn.data.read import files_below, json_values
from flower_privsyn.files import read_json, read_json_lines
from research.gap_picture import ENDS

LEAST = 30


def kinds(column: str, data: Path) -> dict[str, str]:
    """What a column says of each person, up to "."."""
    files = files_below(data) if data.is_dir() else [data]
    rows = (row for file in files for _, row in json_values(file) if isinstance(row, dict))
    return {str(row["client_id"]): str(row.get(column) or "none").partition(".")[0] for row in rows}


def groups(folder: Path, seed: int, kind_of: dict[str, str]) -> Iterator[str]:
    """A line of a table for each group, the largest first."""
    cells = [
        cell
        for file in sorted(folder.glob("cells/*/cell.json"))
        if (cell := read_json(file)).get("status") == "finished"
        and (cell["seed"] == seed or cell["method"] == ENDS[0])
    ]
    counts = {cell["folder"]: np.load(folder / cell["folder"] / USERS_FILE) for cell in cells}
    place = {(cell["method"], cell["epsilon"]): cell["folder"] for cell in cells}
    public = counts[place[ENDS[0], 0.0]]

    def people(file: str) -> list[str]:
        found = dict.fromkeys(line["client_id"] for line in read_json_lines(folder / "data" / file))
        return [kind_of.get(user, user.partition(":")[0]) for user in found]

    asked, places = Counter(people(f"private-{seed}.jsonl")), defaultdict(list)
    for number, kind in enumerate(people("held_out.jsonl")):
        places[kind].append(number)
    compared = [row for row in summarise(cells) if row["method"] not in ENDS]
    yield "| people | asked | measured | " + " | ".join(row["title"] for row in compared) + " |"
    yield "|---|---:|---:|" + "---:|" * len(compared)
    for name, here in sorted(places.items(), key=lambda group: -len(group[1])):
        if len(here) < LEAST:
            continue
        said = []
        for row in summarise(cells, {key: table[here] for key, table in counts.items()}):
            if row["method"] not in ENDS:
                own = counts[place[row["method"], row["epsilon"]]]
                worse = np.mean(own[here, 2] > public[here, 2])
                value, low, high = (
                    100 * row["gap_closed"][key] for key in ("value", "low", "high")
                )
                said.append(f"{value:z.0f} [{low:z.0f}, {high:z.0f}] ({100 * worse:.0f})")
        yield f"| {name} | {asked[name]:,} | {len(here):,} | " + " | ".join(said) + " |"


if __name__ == "__main__":
    folder, seed, *given = sys.argv[1:]
    found = kinds(given[0], Path(given[1])) if given else {}
    for row in groups(Path(folder), int(seed), found):
        print(row)
