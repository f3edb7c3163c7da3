"""Speed: each work of the package, beside its floor and beside what others do the same with.

A floor is what nobody can do without: products of matrices, bytes that are read, a library's call.
A module has `measure`, whose keywords are sizes; `python -m benchmarks.all` runs them all.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from flower_privsyn.embedding.machine import processor
from flower_privsyn.environment import library_versions

Work = Callable[[], object]


class Other(NamedTuple):
    """What a work is measured against.

    Attributes:
        name: "sgemm (floor)", "faiss (peer)".
        work: does it; None where it is not installed.
        aim: the largest ratio that is aimed at; None for none.
    """

    name: str
    work: Work | None
    aim: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """What a work of the package takes, beside another.

    Attributes:
        part: of the package, with its size: "votes, 2,048 candidates".
        other: what it is measured against.
        ours: what the part took, run by run, > 0.
        theirs: what the other took in the same runs; empty where it is not installed.
        unit: "CPU s", of all threads and ended children, or "s" of the clock.
    """

    part: str
    other: Other
    ours: Sequence[float]
    theirs: Sequence[float]
    unit: str = "CPU s"

    def row(self) -> str:
        """A row of `TABLE`."""
        aim = "" if self.other.aim is None else f"{self.other.aim:g}"
        if not self.theirs:
            return f"| {self.part} | {self.other.name} | {aim} | not installed | | |"
        ratios = np.divide(self.ours, self.theirs)
        return (
            f"| {self.part} | {self.other.name} | {aim} | {ratios.min():.2f} "
            f"| {np.median(ratios):.2f} | {np.median(self.ours):.3g} {self.unit} |"
        )


TABLE = """| part | against | aim | least ratio | median | takes |
|---|---|---|---|---|---|"""


def installed(*modules: str) -> bool:
    """Whether all of these can be imported."""
    return None not in map(importlib.util.find_spec, modules)


def cpu_seconds() -> float:
    """Of this process and the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def compared(
    part: str, ours: Work, *others: Other, repeats: int = 3, unit: str = "CPU s"
) -> list[Ratio]:
    """A work beside others, in turn and there and back again, so that a busy moment hits all.

    Args:
        part: as `Ratio` has it.
        ours: the work.
        others: what it is measured against.
        repeats: runs that count, >= 1; one before them starts threads and takes pages.
        unit: as `Ratio` has it.
    """
    clock = cpu_seconds if unit == "CPU s" else time.perf_counter
    works = [ours, *(other.work for other in others)]
    taken: list[list[float]] = [[] for _ in works]
    for repeat in range(repeats + 1):
        turn = [place for place, work in enumerate(works) if work is not None]
        for place in turn if repeat % 2 else reversed(turn):
            begun = clock()
            works[place]()  # type: ignore[misc]
            if repeat:
                taken[place].append(clock() - begun)
    return [
        Ratio(part=part, other=other, ours=taken[0], theirs=theirs, unit=unit)
        for other, theirs in zip(others, taken[1:], strict=True)
    ]


def products(operations: float, dtype: torch.dtype = torch.float32) -> Work:
    """So many floating-point operations, in products of large matrices."""
    size = 1024
    left, right = (torch.randn(size, size, dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)

    def work() -> None:
        for first in range(0, (rows := round(operations / (2 * size**2))), size):
            part = slice(0, min(size, rows - first))
            torch.matmul(left[part], right, out=out[part])

    return work


def apart(function: Callable[..., Any], *given: object) -> Any:
    """What a function returns in a process of its own, which writes nothing.

    What one benchmark loads and sets must not speed up or slow down the next.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=silenced) as own:
        return own.submit(function, *given).result()


def silenced() -> None:
    """Throw away what this process writes to its terminal from now on."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def unit_rows(generator: np.random.Generator, rows: int, dimension: int) -> np.ndarray:
    """(rows, dimension) float32, random rows of norm 1."""
    drawn = generator.standard_normal((rows, dimension), dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def extensions() -> dict[str, bool]:
    """Whether the processor has what fast products use."""
    flags = processor().get("flags", "").split()
    names = {"AVX-512": "avx512f", "AMX": "amx_tile"}
    return {name: flag in flags for name, flag in names.items()} | {
        "bf16": bool({"avx512_bf16", "amx_bf16"}.intersection(flags))
    }


def machine() -> str:
    """What figures are taken on, and the kernels of NumPy's products, which variables may set."""
    from threadpoolctl import threadpool_info

    found = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
    blas = sorted({one["architecture"] for one in found})
    has = ", ".join(name if there else f"no {name}" for name, there in extensions().items())
    versions = library_versions("torch", "numpy", "transformers", "flwr").items()
    named = [*(f"{name} {version}" for name, version in versions), f"OpenBLAS {'/'.join(blas)}"]
    return (
        f"{processor().get('model name', 'processor')} ({has}), {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}; {', '.join(named)}"
    )
