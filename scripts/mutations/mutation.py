"""One planted mistake."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One planted mistake.

    Attributes:
        name: what goes wrong.
        file: where.
        before: text that must occur there exactly once.
        after: what replaces it.
        tests: arguments of pytest that must fail.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
