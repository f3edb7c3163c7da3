"""Seconds of one POPri scoring round, beside the (users x candidates) matrix it does not need.

    python -m benchmarks.similarity [--users 133000] [--samples 5] [--candidates 18000]

Embeddings are random unit vectors, already cached, as in a round after the first. The seconds of
`MeanSimilarity.answer`: for the answer space "candidates" with the factorisation of the candidates
(the first node of a process) and without it (every further one), for "span" from the root alone;
and at the server of that root and of `expand_scores`. Beside them, in the same process, the scores
matrix in float32 blocks: one product of users and candidates, norms, clipping, sum; on
`--naive-users` of the users, scaled up.

The floor of the cohort form is 2 n d^2 + 2 m d^2 floating-point operations (n users, m candidates
d dimensions), that of the matrix 2 n m d. Wall seconds count what else the machine does; the CPU
seconds beside them, of all threads, do not.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import Ratio
from flower_privsyn.queries import Cohort, MeanSimilarity, expand_scores, similarity
from flower_privsyn.queries.arithmetic import unit_rows, user_means

#: Elements of one block of the naive scores matrix: 32 MiB of float32.
_BLOCK_ELEMENTS = 2**23


def naive_answer(cohort: Cohort, centred: np.ndarray) -> np.ndarray:
    """The sum of clipped scores by way of the scores matrix, candidates centred beforehand."""
    users = user_means(cohort, unit_rows, width=centred.shape[1]).astype(np.float32)
    right = np.ascontiguousarray(centred.T, dtype=np.float32)
    rows = max(1, _BLOCK_ELEMENTS // len(centred))
    scores = np.empty((rows, len(centred)), dtype=np.float32)
    total = np.zeros(len(centred))
    for start in range(0, len(users), rows):
        block = users[start : start + rows]
        part = np.matmul(block, right, out=scores[: len(block)])
        norms = np.sqrt(np.einsum("nm,nm->n", part, part))
        total += (1.0 / np.maximum(norms, 1.0)) @ part
    return total


def seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median wall and CPU seconds."""
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return float(np.median(walls)), float(np.median(cpus))


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one line per form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=133_000)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--candidates", type=int, default=18_000)
    parser.add_argument("--responses", type=int, default=10, help="candidates per prompt")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--naive-users", type=int, default=6_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args(given)

    n, m, d = arguments.users, arguments.candidates, arguments.dimension
    generator = np.random.default_rng(0)

    def unit(count: int) -> np.ndarray:
        rows = np.empty((count, d), dtype=np.float32)
        for start in range(0, count, 50_000):
            block = generator.standard_normal((min(50_000, count - start), d), dtype=np.float32)
            rows[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
        return rows

    cohort = Cohort(unit(n * arguments.samples), np.repeat(np.arange(n), arguments.samples), n)
    candidates, prompt = unit(m), np.arange(m) // arguments.responses
    broadcast: dict[str, dict[str, np.ndarray]] = {}
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, numpy "
        f"{np.__version__}, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', 'unset')}, load "
        f"{os.getloadavg()[0]:.1f} before"
    )
    print(f"{n:,} users x {arguments.samples} texts, {m:,} candidates, {d} dimensions")
    print(f"{'':<44}{'wall s':>8} {'CPU s':>8}")

    taken: dict[str, float] = {}

    def line(name: str, measured: tuple[float, float], scale: float = 1.0) -> None:
        taken[name.strip()] = measured[1] * scale
        print(f"{name:<44}{measured[0] * scale:>8.2f} {measured[1] * scale:>8.2f}")

    answers = {}
    for space in ("candidates", "span"):
        query = MeanSimilarity(answer_space=space)

        def send(query: MeanSimilarity = query) -> None:
            broadcast[query.answer_space] = query.broadcast(candidates, prompt=prompt)

        def answer(query: MeanSimilarity = query) -> None:
            answers[query.answer_space] = query.answer(cohort, broadcast[query.answer_space])

        send()
        answer()  # warm-up: threads, pages
        line(f'answer, answer_space = "{space}"', seconds(answer, arguments.repeats))
        if space == "span":
            line("  the root of the candidates, at the server", seconds(send, arguments.repeats))
    line(
        "expand_scores at the server",
        seconds(
            lambda: expand_scores(answers["span"], candidates, prompt=prompt), arguments.repeats
        ),
    )
    few = next(cohort.blocks(arguments.naive_users))
    centred = similarity._centred(candidates, prompt, "prompt")
    naive_answer(next(cohort.blocks(500)), centred)  # warm-up
    scale = n / few.num_users
    measured = seconds(lambda: naive_answer(few, centred), arguments.repeats)
    line(f"matrix in blocks, from {few.num_users:,} users", measured, scale)

    direct = naive_answer(few, centred)
    ours = MeanSimilarity().answer(few, broadcast["candidates"])
    print(
        f"largest difference of the two forms: {np.abs(ours - direct).max():.1e} of scores up to "
        f"{np.abs(direct).max():.1e}, {few.num_users:,} users"
    )
    cohort_flops, matrix_flops = 2.0 * (n + m) * d * d, 2.0 * n * m * d
    print(
        f"floors: {cohort_flops / 1e9:,.0f} and {matrix_flops / 1e9:,.0f} GFLOP "
        f"({matrix_flops / cohort_flops:.0f} times as many)"
    )
    matrix = taken[f"matrix in blocks, from {few.num_users:,} users"]
    return [
        Ratio(
            f'similarities, answer space "{space}", {n:,} users, {m:,} candidates',
            "the matrix of scores",
            "peer",
            taken[f'answer, answer_space = "{space}"'],
            matrix,
            "CPU s",
        )
        for space in answers
    ]


if __name__ == "__main__":
    main()
