"""One private-evolution round's votes, beside the product they come from and faiss's search."""

from __future__ import annotations

import numpy as np

from benchmarks import Other, Ratio, compared, extensions, installed, unit_rows
from flower_privsyn.queries import Cohort, NearestNeighborHistogram
from flower_privsyn.queries.nearest_neighbor import block_rows

SAMPLES, DIMENSION = 8, 384


def measure(*, users: int = 1000, candidates: int = 18_000) -> list[Ratio]:
    """Of users with eight records each."""
    generator, has = np.random.default_rng(1), extensions()
    records = unit_rows(generator, users * SAMPLES, DIMENSION)
    cohort = Cohort(records, np.repeat(np.arange(users), SAMPLES), users)
    query = NearestNeighborHistogram(max_samples=SAMPLES)
    points = unit_rows(generator, candidates, DIMENSION)
    points.flags.writeable = False  # as a round's are
    aim = 0.6 if has["AVX-512"] and has["bf16"] else None
    return compared(
        f"votes, {candidates:,} candidates",
        lambda: query.answer(cohort, {"candidates": points}),
        sgemm(records, points, aim),
        search(records, points, aim),
        repeats=5,
    )


def sgemm(records: np.ndarray, candidates: np.ndarray, aim: float | None) -> Other:
    """All inner products in float32, block by block."""
    right = np.ascontiguousarray(candidates.T)
    out = np.empty((block_rows(len(candidates)), len(candidates)), dtype=np.float32)

    def work() -> None:
        for start in range(0, len(records), len(out)):
            block = records[start : start + len(out)]
            np.matmul(block, right, out=out[: len(block)])

    return Other("sgemm (floor)", work, aim)


def search(records: np.ndarray, candidates: np.ndarray, aim: float | None) -> Other:
    """The exact search of faiss."""
    if not installed("faiss"):
        return Other("faiss (peer): `pip install faiss-cpu`", None, aim)
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexFlatL2(records.shape[1])
    index.add(candidates)
    return Other("faiss (peer)", lambda: index.search(records, 1), aim)
