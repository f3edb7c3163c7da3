"""One private-evolution round's votes, beside the matrix product that they cannot avoid.

    python -m benchmarks.nearest_neighbor [--users 10000] [--samples 8] [--repeats 5]

For each number of candidates: the votes (`NearestNeighborHistogram.answer`), and their product in
float32 (records x candidates, in the same blocks), 2 n m d operations.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks import Ratio, compared, shown, unit_rows
from flower_privsyn.queries import Cohort, NearestNeighborHistogram
from flower_privsyn.queries.nearest_neighbor import block_rows


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--candidates", type=int, nargs="+", default=[2048, 18_000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(given)
    users, samples, d = arguments.users, arguments.samples, arguments.dimension
    generator = np.random.default_rng(1)
    records = unit_rows(generator, users * samples, d)
    cohort = Cohort(records, np.repeat(np.arange(users), samples), users)
    query = NearestNeighborHistogram(max_samples=samples)
    found = []
    for m in arguments.candidates:
        candidates = unit_rows(generator, m, d)
        candidates.flags.writeable = False  # as a round's are
        right, rows = np.ascontiguousarray(candidates.T), block_rows(m)
        out = np.empty((rows, m), dtype=np.float32)

        def sgemm(right: np.ndarray = right, out: np.ndarray = out) -> None:
            for start in range(0, len(records), len(out)):
                block = records[start : start + len(out)]
                np.matmul(block, right, out=out[: len(block)])

        found += compared(
            f"votes, {m:,} candidates",
            lambda c=candidates: query.answer(cohort, {"candidates": c}),  # type: ignore[misc]
            {("sgemm", "floor"): sgemm},
            repeats=arguments.repeats,
        )
    return shown(found)


if __name__ == "__main__":
    main()
