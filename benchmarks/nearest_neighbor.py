"""Seconds of one private-evolution round's votes, against the matrix product they cannot avoid.

    python -m benchmarks.nearest_neighbor [--users 10000] [--samples 8] [--repeats 5]

For each number of candidates, in the same process and in turn: the votes
(`NearestNeighborHistogram.answer`); their product in float32 (records x candidates,
in the same blocks); and faiss's flat index where it is installed, which is also the search of
Microsoft's `private-evolution`. The floor is 2 n m d floating-point operations in float32. Seconds
of the clock, CPU seconds of all threads, and the ratios of both: medians, those of ratios taken run
by run.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks import Ratio
from flower_privsyn.queries import Cohort, NearestNeighborHistogram
from flower_privsyn.queries.nearest_neighbor import block_rows

FAISS_INSTALL = "pip install faiss-cpu"


def unit(generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    """Random rows of length 1."""
    rows = generator.standard_normal((count, dimension), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def ways_of(
    cohort: Cohort, candidates: np.ndarray, samples: int
) -> dict[str, Callable[[], object]]:
    """What is compared, by name."""
    query = NearestNeighborHistogram(max_samples=samples)
    records, m = cohort.records, len(candidates)
    right, rows = np.ascontiguousarray(candidates.T), block_rows(m)
    out = np.empty((rows, m), dtype=np.float32)

    def sgemm() -> None:
        for start in range(0, len(records), rows):
            block = records[start : start + rows]
            np.matmul(block, right, out=out[: len(block)])

    ways: dict[str, Callable[[], object]] = {
        "votes": lambda: query.answer(cohort, {"candidates": candidates}),
        "sgemm": sgemm,
    }
    try:
        import faiss
    except ImportError:
        return ways
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatL2(records.shape[1])
    index.add(candidates)
    return ways | {"faiss": lambda: index.search(records, 1)}


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one line per number of candidates and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--candidates", type=int, nargs="+", default=[2048, 18_000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(given)
    users, samples, d = arguments.users, arguments.samples, arguments.dimension

    generator = np.random.default_rng(1)
    cohort = Cohort(
        unit(generator, users * samples, d), np.repeat(np.arange(users), samples), users
    )
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy "
        f"{np.__version__}, torch {torch.__version__}, OMP_NUM_THREADS="
        f"{os.environ.get('OMP_NUM_THREADS', 'unset')}, load {os.getloadavg()[0]:.1f} before"
    )
    print("users x samples  candidates  way           s   CPU s  to sgemm  CPU s to sgemm")
    ratios = []
    for m in arguments.candidates:
        candidates = unit(generator, m, d)
        candidates.flags.writeable = False  # as a round's are
        ways = ways_of(cohort, candidates, samples)
        for work in ways.values():
            work()  # warm-up: threads, pages
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(arguments.repeats):  # in turn, so that a busy moment hits all
            for name, work in ways.items():
                wall, cpu = time.perf_counter(), time.process_time()
                work()
                taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        seconds = {name: np.array(times) for name, times in taken.items()}
        for name, times in seconds.items():
            wall, cpu = np.median(times, axis=0)
            to_wall, to_cpu = np.median(times / seconds["sgemm"], axis=0)
            print(
                f"{users:>7,} x {samples:<5} {m:>10,}  {name:<8} {wall:>6.2f} {cpu:>7.2f} "
                f"{to_wall:>9.2f} {to_cpu:>15.2f}"
            )
        part, ours = f"votes, {m:,} candidates", float(np.median(seconds["votes"][:, 1]))
        for name, kind in (("sgemm", "floor"), ("faiss", "peer")):
            theirs = float(np.median(seconds[name][:, 1])) if name in seconds else None
            ratios.append(Ratio(part, name, kind, ours, theirs, "CPU s", FAISS_INSTALL))  # type: ignore[arg-type]
    return ratios


if __name__ == "__main__":
    main()
