"""Titles, colours and marks of methods: of the catalogue, and of what it does not know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flower_privsyn.report.figures import MARKS, PALETTE
from flower_privsyn.report.numbers import Look, shortened, writable
from flower_privsyn.strategies.catalogue import compared

#: Characters of a title.
_LENGTH = 60


def title(name: str, given: Any) -> str:
    """What a method is called.

    Args:
        name: of the method.
        given: what a file calls it, which may be anything; if it is empty, the catalogue says.
    """
    known = compared().get(name)
    found = given or (name if known is None else known.title)
    return shortened(" ".join(writable(str(found)).split()), _LENGTH)


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """A colour and a mark for each method: its own where it has one, else one nobody else has.

    Args:
        methods: names.
    """
    known = {
        name: Look(method.colour, method.mark)
        for name, method in compared().items()
        if method.colour is not None and method.mark is not None
    }
    taken = set(known.values())
    marks = list(MARKS)
    free = (
        Look((place + shift) % PALETTE, marks[(place + 3) % len(marks)])
        for shift in range(PALETTE)
        for place in range(PALETTE * len(marks))
    )
    found = {}
    for name in dict.fromkeys(methods):
        found[name] = known.get(name) or next((f for f in free if f not in taken), Look(7, "wedge"))
        taken.add(found[name])
    return found
