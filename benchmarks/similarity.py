"""One POPri scoring round, beside the (users x candidates) matrix that it does not need.

Embeddings are random unit vectors, already cached, as in a round after the first; the candidates
are factorised before. The floor is one product of the users with a matrix of their own width.
"""

from __future__ import annotations

import numpy as np

from benchmarks import Other, Ratio, compared, products, unit_rows
from flower_privsyn.queries import Cohort, MeanSimilarity, similarity
from flower_privsyn.queries.arithmetic import unit_rows as normalised
from flower_privsyn.queries.arithmetic import user_means

SAMPLES, DIMENSION = 5, 384


def measure(*, users: int = 10_000, candidates: int = 18_000) -> list[Ratio]:
    """Of users with five records each, in both answer spaces."""
    generator, found = np.random.default_rng(0), []
    records = unit_rows(generator, users * SAMPLES, DIMENSION)
    cohort = Cohort(records, np.repeat(np.arange(users), SAMPLES), users)
    vectors, prompt = unit_rows(generator, candidates, DIMENSION), np.arange(candidates) // 10
    right = np.ascontiguousarray(similarity._centred(vectors, prompt, "prompt").T, dtype=np.float32)

    def by_matrix() -> np.ndarray:
        """The sum of clipped scores, 32 MiB of the matrix at a time."""
        means = user_means(cohort, normalised, width=DIMENSION).astype(np.float32)
        rows, total = max(1, 2**23 // candidates), np.zeros(candidates)
        for start in range(0, users, rows):
            part = means[start : start + rows] @ right
            total += (1.0 / np.maximum(np.linalg.norm(part, axis=1), 1.0)) @ part
        return total

    for space in ("candidates", "span"):
        query = MeanSimilarity(answer_space=space)
        asked = query.broadcast(vectors, prompt=prompt)
        for array in asked.values():  # as messages give them: what follows is kept with them
            array.flags.writeable = False
        found += compared(
            f'similarities, "{space}", {users:,} users, {candidates:,} candidates',
            lambda query=query, asked=asked: query.answer(cohort, asked),  # type: ignore[misc]
            Other("one product (floor)", products(2.0 * users * DIMENSION**2)),
            Other("the matrix of scores (peer)", by_matrix),
        )
    return found
