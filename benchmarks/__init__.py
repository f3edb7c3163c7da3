"""Speed, beside the library, with the commands that produced every printed figure.

Every benchmark is a module with `main(arguments)`: it prints a table of `Ratio`s and returns them.
`python -m benchmarks.all` runs them all and makes one table of theirs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flower_privsyn.embedding.machine import processor
from flower_privsyn.environment import library_versions

Against = Literal["floor", "peer"]
Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """What a part of the package takes, beside something that does the same.

    Attributes:
        part: of the package, with its size: "votes, 2,048 candidates".
        other: what it is measured against: "sgemm", "generate()".
        kind: "floor": nobody can do without; "peer": how others do it.
        ours: what the part took, run by run.
        theirs: what the other took, as many times or once.
        unit: "s" (of the clock) or "CPU s", of all threads; more is worse.
    """

    part: str
    other: str
    kind: Against
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str = "CPU s"

    @property
    def ratio(self) -> float:
        """The median of ours over theirs, run by run: below 1, the package is faster."""
        return float(np.median(np.divide(self.ours, self.theirs)))


def in_turn(
    ways: Mapping[str, Work], *, repeats: int, unit: str = "CPU s"
) -> dict[str, list[float]]:
    """What each takes, run by run: in turn, so that a busy moment hits all."""
    clock = time.process_time if unit == "CPU s" else time.perf_counter
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, work in ways.items():
            begun = clock()
            work()
            if repeat:  # the first one starts threads and takes pages
                taken[name].append(clock() - begun)
    return taken


def compared(
    part: str,
    ours: Work,
    others: Mapping[tuple[str, Against], Work | float],
    *,
    repeats: int,
    unit: str = "CPU s",
) -> list[Ratio]:
    """A part beside others.

    Args:
        part: as `Ratio` has it.
        ours: the part.
        others: by name and kind: work, or what it takes.
        repeats: >= 1.
        unit: as `Ratio` has it.
    """
    works = {name: other for (name, _), other in others.items() if callable(other)}
    taken = in_turn({"": ours} | works, repeats=repeats, unit=unit)
    return [
        Ratio(
            part=part,
            other=name,
            kind=kind,
            ours=taken[""],
            theirs=taken[name] if callable(other) else [other],
            unit=unit,
        )
        for (name, kind), other in others.items()
    ]


def operations_per_second(*, precision: str = "float32", unit: str = "CPU s") -> float:
    """Floating-point operations of one large product of matrices."""
    import torch

    size = 1024
    left, right = (torch.randn(size, size, dtype=getattr(torch, precision)) for _ in range(2))
    return 2.0 * size**3 / min(in_turn({"": lambda: left @ right}, repeats=10, unit=unit)[""])


def unit_rows(generator: np.random.Generator, rows: int, dimension: int) -> np.ndarray:
    """(rows, dimension) float32, random rows of norm 1."""
    drawn = generator.standard_normal((rows, dimension), dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def table(ratios: Sequence[Ratio]) -> str:
    """The ratios in Markdown."""
    lines = [
        "| part | against | takes | the other takes | ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {one.part} | {one.other} ({one.kind}) | {np.median(one.ours):.3g} {one.unit} "
            f"| {np.median(one.theirs):.3g} {one.unit} | {one.ratio:.2f} |"
            for one in ratios
        ),
    ]
    return "\n".join(lines)


def machine() -> str:
    """What figures are taken on."""
    versions = library_versions("torch", "numpy")
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    threads = os.environ.get("OMP_NUM_THREADS", "unset")
    return (
        f"{processor().get('model name', 'processor')}, {os.cpu_count()} cores, {libraries}, "
        f"OMP_NUM_THREADS={threads}, load {os.getloadavg()[0]:.0f}"
    )


def shown(ratios: list[Ratio]) -> list[Ratio]:
    """Print the ratios with the machine; they come back."""
    print(f"{machine()}\n\n{table(ratios)}", flush=True)
    return ratios
