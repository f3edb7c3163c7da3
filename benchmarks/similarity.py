"""One POPri scoring round, beside the (users x candidates) matrix that it does not need.

    python -m benchmarks.similarity [--users 133000] [--samples 5] [--candidates 18000]

Embeddings are random unit vectors, already cached, as in a round after the first. Both answer
spaces of `MeanSimilarity.answer`, the candidates factorised before. The peer is the matrix of
scores in float32 blocks (one product of users and candidates, norms, clipping, sum) on `--few` of
the users, scaled up.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import Ratio, compared, shown, unit_rows
from flower_privsyn.queries import Cohort, MeanSimilarity, similarity
from flower_privsyn.queries.arithmetic import unit_rows as normalised
from flower_privsyn.queries.arithmetic import user_means

#: Elements of one block of the scores matrix: 32 MiB of float32.
_BLOCK_ELEMENTS = 2**23


def by_matrix(cohort: Cohort, centred: np.ndarray) -> np.ndarray:
    """The sum of clipped scores by way of the scores matrix, candidates centred beforehand."""
    users = user_means(cohort, normalised, width=centred.shape[1]).astype(np.float32)
    right = np.ascontiguousarray(centred.T, dtype=np.float32)
    rows, total = max(1, _BLOCK_ELEMENTS // len(centred)), np.zeros(len(centred))
    for start in range(0, len(users), rows):
        part = users[start : start + rows] @ right
        total += (1.0 / np.maximum(np.linalg.norm(part, axis=1), 1.0)) @ part
    return total


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=133_000)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=18_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--few", type=int, default=6_000, help="users of the matrix of scores")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)
    n, m, d = arguments.users, arguments.candidates, arguments.dimension
    generator = np.random.default_rng(0)
    records = unit_rows(generator, n * arguments.samples, d)
    cohort = Cohort(records, np.repeat(np.arange(n), arguments.samples), n)
    candidates, prompt = unit_rows(generator, m, d), np.arange(m) // 10
    few = next(cohort.blocks(arguments.few))
    centred = similarity._centred(candidates, prompt, "prompt")
    found, asked = list[Ratio](), {}
    for space in ("candidates", "span"):
        query = MeanSimilarity(answer_space=space)
        asked[space] = query.broadcast(candidates, prompt=prompt)
        for array in asked[space].values():  # as messages give them: what follows is kept with them
            array.flags.writeable = False
        ratios = compared(
            f'similarities, answer space "{space}", {n:,} users, {m:,} candidates',
            lambda q=query, b=asked[space]: q.answer(cohort, b),  # type: ignore[misc]
            {("the matrix of scores", "peer"): lambda: by_matrix(few, centred)},
            repeats=arguments.repeats,
        )
        scale = n / few.num_users
        found += [replace(one, theirs=[scale * value for value in one.theirs]) for one in ratios]
    direct = by_matrix(few, centred)
    ours = MeanSimilarity(answer_space="candidates").answer(few, asked["candidates"])
    if np.abs(ours - direct).max() > 5e-3 * np.abs(direct).max():
        raise SystemExit("the matrix of scores has other sums")
    return shown(found)


if __name__ == "__main__":
    main()
