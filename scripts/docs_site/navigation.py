"""The navigation of the site: the list of pages in docs/README.md, which is its one place."""

from __future__ import annotations

import re

_SECTION = re.compile(r"^## (.+)$")
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^()\s]+)\)")


def sections(text: str) -> dict[str, list[tuple[str, str]]]:
    """Sections of the list of pages, and title and link of every page in them.

    Args:
        text: docs/README.md.

    Raises:
        ValueError: A page stands before the first section.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            found[heading[1]] = []
        elif entry := _ENTRY.match(line):
            if not found:
                raise ValueError(f"{entry[2]} stands before the first section of docs/README.md.")
            found[list(found)[-1]].append((entry[1], entry[2]))
    return found
