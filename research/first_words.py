"""Users who wrote much, cut to their first words: as much of everybody, and of everybody alike.

    python research/first_words.py speech-*.jsonl.gz --words 400 --output speech.jsonl.gz

Texts stand in the order of the files; the one in which a user's words run out is cut there, and the
user's later ones are left out. Words are joined by single blanks. With `--without-sealed-of FILE`
(JSON lines) nobody is kept who is in that file and sealed (`flower_privsyn.comparison.people`): a
sample that experiments have looked at spoils its sealed users for the last table, and no others.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from flower_privsyn.comparison.people import sealed


def main(words: Sequence[str] | None = None) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--client-column", default="client_id")
    parser.add_argument("--without-sealed-of", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args(words)
    taken = collections.Counter[str]()
    seen: set[str] = set()
    if arguments.without_sealed_of:
        with arguments.without_sealed_of.open(encoding="utf-8") as rows:
            known = sorted({json.loads(row)[arguments.client_column] for row in rows})
        seen = {user for user, closed in zip(known, sealed(known), strict=True) if closed}
    with gzip.open(arguments.output, "wt", encoding="utf-8") as output:
        for file in arguments.files:
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                for line in lines:
                    record = json.loads(line)
                    user = record[arguments.client_column]
                    if user in seen:
                        continue
                    first = record["text"].split()[: arguments.words - taken[user]]
                    if first:
                        taken[user] += len(first)
                        output.write(json.dumps(record | {"text": " ".join(first)}) + "\n")


if __name__ == "__main__":
    main()
