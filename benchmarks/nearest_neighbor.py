"""Seconds of one private-evolution round's votes, against the matrix product they cannot avoid.

    python -m benchmarks.nearest_neighbor [--users 10000] [--samples 8] [--repeats 5]

For each number of candidates: the seconds of `NearestNeighborHistogram.answer`, the seconds of one
float32 matrix product (records x candidates, in the blocks the kernel uses, in the same process),
and their ratio. The floor is 2 n m d floating-point operations.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable

import numpy as np

from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.queries.nearest_neighbor import block_rows
from flower_privsyn.testing import random_cohort


def wall_seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Wall seconds of each of `repeats` calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Print one line per number of candidates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--candidates", type=int, nargs="+", default=[2048, 18_000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    cohort = random_cohort(
        num_users=arguments.users,
        max_records=arguments.samples,
        dimension=arguments.dimension,
        seed=0,
        empty=0.0,
    )
    # Every user has the full number of samples.
    n = arguments.users * arguments.samples
    generator = np.random.default_rng(1)
    records = generator.standard_normal((n, arguments.dimension)).astype(np.float32)
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    cohort = type(cohort)(
        records, np.repeat(np.arange(arguments.users), arguments.samples), arguments.users
    )
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy "
        f"{np.__version__}, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}"
    )
    print("users x samples  candidates  histogram s  sgemm s  ratio  sgemm GFLOP/s")
    for m in arguments.candidates:
        candidates = generator.standard_normal((m, arguments.dimension)).astype(np.float32)
        candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
        query = NearestNeighborHistogram(max_samples=arguments.samples)
        right = np.ascontiguousarray(candidates.T)
        rows = block_rows(m)
        out = np.empty((rows, m), dtype=np.float32)

        def product(right: np.ndarray = right, out: np.ndarray = out, rows: int = rows) -> None:
            for start in range(0, n, rows):
                block = records[start : start + rows]
                np.matmul(block, right, out=out[: len(block)])

        def histogram(
            query: NearestNeighborHistogram = query, candidates: np.ndarray = candidates
        ) -> None:
            query.answer(cohort, {"candidates": candidates})

        product()  # warm-up: threads, pages
        ours, floor = [], []
        for _ in range(arguments.repeats):  # interleaved, so that a busy moment hits both
            ours += wall_seconds(histogram, 1)
            floor += wall_seconds(product, 1)
        seconds, sgemm = float(np.median(ours)), float(np.median(floor))
        flops = 2.0 * n * m * arguments.dimension
        print(
            f"{arguments.users:>7,} x {arguments.samples:<5} {m:>10,} {seconds:>12.2f} "
            f"{sgemm:>8.2f} {seconds / sgemm:>6.2f} {flops / sgemm / 1e9:>14.0f}"
        )


if __name__ == "__main__":
    main()
