"""One POPri scoring round, beside the (users x candidates) matrix that it does not need.

    python -m benchmarks.similarity [--users 133000] [--samples 5] [--candidates 18000]

Embeddings are random unit vectors, already cached, as in a round after the first. Both answer
spaces of `MeanSimilarity.answer`, the candidates factorised before, and at the server the root of
the candidates and `expand_scores`. The peer is the matrix of scores in float32 blocks (one product
of users and candidates, norms, clipping, sum) on `--few` of the users, scaled up. The floor is
2 (n + m) d^2 operations at the speed of one large product (n users, m candidates, d dimensions);
the matrix takes 2 n m d.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import Ratio, compared, operations_per_second, shown, unit_rows
from flower_privsyn.queries import Cohort, MeanSimilarity, expand_scores, similarity
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
    floor = 2.0 * (n + m) * d**2 / operations_per_second()
    found, asked = list[Ratio](), {}
    for space in ("candidates", "span"):
        query = MeanSimilarity(answer_space=space)
        asked[space] = query.broadcast(candidates, prompt=prompt)
        for array in asked[space].values():  # as messages give them: what follows is kept with them
            array.flags.writeable = False
        ratios = compared(
            f'similarities, answer space "{space}", {n:,} users, {m:,} candidates',
            lambda q=query, b=asked[space]: q.answer(cohort, b),  # type: ignore[misc]
            {
                ("its products", "floor"): floor,
                ("the matrix of scores", "peer"): lambda: by_matrix(few, centred),
            },
            repeats=arguments.repeats,
        )
        scale = n / few.num_users
        found += [
            replace(one, theirs=[scale * value for value in one.theirs or ()])
            if one.kind == "peer"
            else one
            for one in ratios
        ]
    direct = by_matrix(few, centred)
    ours = MeanSimilarity(answer_space="candidates").answer(few, asked["candidates"])
    if np.abs(ours - direct).max() > 5e-3 * np.abs(direct).max():
        raise SystemExit("the matrix of scores has other sums")
    answer = MeanSimilarity(answer_space="span").answer(few, asked["span"])
    candidates.flags.writeable = prompt.flags.writeable = False  # as those of a run's state
    for part, work in (
        ("the root of candidates", lambda: query.broadcast(candidates.copy(), prompt=prompt)),
        ("scores from their span", lambda: expand_scores(answer, candidates, prompt=prompt)),
    ):
        product = {("2 m d^2", "floor"): 2.0 * m * d**2 / operations_per_second()}
        found += compared(f"{part}, {m:,}", work, product, repeats=arguments.repeats)  # type: ignore[arg-type]
    return shown(found)


if __name__ == "__main__":
    main()
