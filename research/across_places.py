r"""One table of comparisons at several places: of other text, more users, another epsilon.

    python -m research.across_places research/results/compare.jsonl \
        --place "abstracts of sealed users" 3000 1 \
        --place "speech, 400 words, of sealed users" 4100 1

A place is what the text is, how many users took part, and their epsilon; a file of cells is as for
`research.compared_cells`. A row is a method that was run in more than one of the places.
In a place stands the next-token accuracy of the student, in percent, that of the taught one behind
a semicolon, and in brackets how much of the way from the public model to private text is closed.
What asks nobody is the same at every epsilon. Standard errors are of the first figure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flower_privsyn.files import read_json_lines
from research.compared_cells import cells_of, printed, summary_of
from research.measured_cells import CHOICES

#: The text, its users and their epsilon.
Place = tuple[str, int, float]


def table_of(lines: Sequence[Mapping[str, Any]], places: Sequence[Place]) -> str:
    """The table, as Markdown.

    Args:
        lines: cells.
        places: its columns.

    Raises:
        ConfigError: as `cells_of` and `summary_of`.
    """
    columns: list[dict[str, str]] = []
    titles: dict[str, str] = {}
    for data, users, epsilon in places:
        methods, rows = summary_of(cells_of(lines, data=data, users=users))
        titles = {name: CHOICES.get(name, method.title) for name, method in methods.items()}
        columns.append(
            {
                row["method"]: _figures(row)
                for row in rows
                if row["epsilon"] in (None, 0.0, epsilon) and row["seeds"]
            }
        )
    heads = [f"{data}, {users:,}, ε = {epsilon:g}" for data, users, epsilon in places]
    found = [
        "| method | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * len(places),
    ]
    for name, title in titles.items():
        if sum(name in column for column in columns) >= min(2, len(places)):
            figures = [column.get(name, "-") for column in columns]
            found.append(f"| {title} | " + " | ".join(figures) + " |")
    return "\n".join(found)


def _figures(row: Mapping[str, Any]) -> str:
    figure = row["next_token_accuracy"]
    said = f"{100 * figure['mean']:.2f}"
    if figure["standard_error"] is not None:
        said += f" ± {100 * figure['standard_error']:.2f}"
    if taught := row["taught"]:
        said += f"; {100 * taught:.2f}"
    if gap := row.get("gap_closed"):
        said += f" ({100 * gap['mean']:z.0f} %)"
    return said


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cells", type=Path)
    parser.add_argument(
        "--place", nargs=3, action="append", required=True, metavar=("DATA", "USERS", "EPSILON")
    )
    options = parser.parse_args(words)
    places = [(data, int(users), float(epsilon)) for data, users, epsilon in options.place]
    return printed(lambda: table_of(list(read_json_lines(options.cells)), places))


if __name__ == "__main__":
    sys.exit(main())
