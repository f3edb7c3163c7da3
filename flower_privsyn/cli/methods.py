"""`privsyn methods`: the catalogue, with what other distributions add to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from flower_privsyn.cli.options import Json


def methods(as_json: Json = False) -> int:
    """List the methods and their papers."""
    from flower_privsyn.strategies.catalogue import entries, refusals

    rows = [entry.to_dict() for entry in entries().values()]
    for sentence in refusals():
        sys.stderr.write(f"privsyn: {sentence}\n")
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        _show(rows)
    return 0


def _show(rows: Sequence[dict[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # plain: the title of a method from outside may look like markup

    headings = {"title": "method", "kind": "gives", "query": "users answer", "paper": "paper"}
    console = Console()
    narrow = console.width < 120
    for keys in (["title", "kind"], ["query", "paper"]) if narrow else (list(headings),):
        table = Table("strategy", *(headings[key] for key in keys), pad_edge=False)
        for row in rows:
            table.add_row(*(Text(row[key]) for key in ("name", *keys)))
        console.print(table)
