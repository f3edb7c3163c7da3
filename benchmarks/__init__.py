"""Speed, beside the library, with the commands that produced every printed figure.

Every benchmark is a module with `main(arguments)`: it prints what it measured and returns it as
`Ratio`s. `python -m benchmarks.all` runs them all and makes one table of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Against = Literal["floor", "peer"]


@dataclass(frozen=True)
class Ratio:
    """What a part of the package takes, beside something that does the same.

    Attributes:
        part: of the package, with its size: "votes, 2,048 candidates".
        other: what it is measured against: "sgemm", "faiss".
        kind: "floor": nobody can do without; "peer": how others do it.
        ours: what the part takes.
        theirs: what the other takes, in the same unit; None where its library is not installed.
        unit: "s" (of the clock), "CPU s", ...; more is worse.
        missing: how to install what is not.
    """

    part: str
    other: str
    kind: Against
    ours: float
    theirs: float | None
    unit: str
    missing: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over theirs: below 1, the package is faster."""
        return None if self.theirs is None else self.ours / self.theirs
