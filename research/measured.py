r"""Make the table that `privsyn advise` reads, of comparisons.

    python -m research.measured "abstracts=research/results/abstracts.json" > measured.json

Each comparison is a kind of text, as it is to be called, and its `compare.json`. A place of the
table is one of its epsilons, with the methods that ran there and what asks nobody, best bits first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flower_privsyn.files import read_json

#: Of a row of `compare.json`.
_SHARES = ("gap_closed", "from_floor")
_MEANS = ("next_token_accuracy", "bits_per_byte", "bytes_up", "bytes_down", "client_cpu_seconds")


def places_of(data: str, document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The places of a comparison.

    Args:
        data: what its text is.
        document: its `compare.json`.
    """
    done = [row for row in document["summary"] if row["gap_closed"]]
    for epsilon in sorted({row["epsilon"] for row in done if row["epsilon"]}):
        rows = [
            {
                "method": row["method"],
                "title": row["title"],
                "epsilon": row["epsilon"],
                "seeds": row["seeds"],
                **{key: row[key] for key in _SHARES},
                **{key: (row[key] or {"mean": None})["mean"] for key in _MEANS},
            }
            for row in done
            if row["epsilon"] in (0.0, epsilon)
        ]
        yield {
            "data": data,
            "users": document["data"]["private_users"],
            "epsilon": epsilon,
            "delta": document["delta"],
            "methods": sorted(rows, key=lambda row: -row["gap_closed"]["value"]),
        }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparisons", nargs="+", metavar="DATA=FILE")
    found: list[dict[str, Any]] = []
    for comparison in parser.parse_args().comparisons:
        data, _, file = comparison.partition("=")
        found += places_of(data, read_json(Path(file)))
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
