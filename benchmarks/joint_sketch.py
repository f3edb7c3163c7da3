"""Users per second of a joint sketch's answer and rows per second of scoring, beside their floors.

    python -m benchmarks.joint_sketch [--users 3000] [--tokens 400] [--bigrams 150000]
        [--rows 100000] [--repeats 5]

Tokens follow Zipf's law over 8,192, so that a part of all bigrams is in the table, as with text.
The floor of an answer is to read every token once and add it to a sum, `np.bincount`; of a score,
to look every token up and add along the rows. Wall seconds count what else the machine does; CPU
seconds do not. Medians of some runs.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import Ratio
from flower_privsyn.queries import Cohort, JointSketch, frequent_bigrams
from flower_privsyn.training.selection import LogRatioScorer, select

VOCABULARY = 8192


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
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--users", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--bigrams", type=int, default=150_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(given)
    print(f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")

    generator = np.random.default_rng(0)
    law = 1.0 / np.arange(3, VOCABULARY + 3)
    law /= law.sum()
    shape = (arguments.users, arguments.tokens)
    texts = generator.choice(VOCABULARY, size=shape, p=law).astype(np.int64)
    cohort = Cohort.of(list(texts), np.arange(arguments.users), arguments.users)
    keys = frequent_bigrams(list(texts), vocabulary=VOCABULARY, most=arguments.bigrams)

    found = []
    floor, least = seconds(
        lambda: np.bincount(np.concatenate(list(texts)), minlength=VOCABULARY), arguments.repeats
    )
    print(f"users: {arguments.users} of {arguments.tokens} tokens; one bincount {floor:.4f} s")
    for name, query in (
        ("tokens", JointSketch()),
        ("tokens and bigrams", JointSketch(bigram_share=0.5)),
    ):
        broadcast = query.broadcast(VOCABULARY, keys)
        down = sum(array.nbytes for array in broadcast.values())
        wall, cpu = seconds(lambda q=query, b=broadcast: q.answer(cohort, b), arguments.repeats)  # type: ignore[misc]
        print(
            f"  {name:24s} {wall:.3f} s wall, {cpu:.3f} s CPU, "
            f"{arguments.users / wall:,.0f} users/s, {wall / floor:.0f} x the floor; "
            f"{down:,} bytes down, "
            f"{8 * query.answer_length(broadcast):,} up"
        )
        part = f"joint sketch, {name}, {arguments.users:,} users"
        found.append(Ratio(part, "one bincount", "floor", cpu, least, "CPU s"))

    flat = generator.choice(VOCABULARY, size=(arguments.rows, 64), p=law)
    rows = list(flat)
    ratios = generator.normal(size=VOCABULARY)
    floor, least = seconds(lambda: ratios[flat].sum(axis=1), arguments.repeats)
    print(f"rows: {arguments.rows} of 64 tokens; one look-up and sum {floor:.3f} s")
    by_tokens = LogRatioScorer(tokens=ratios)
    by_bigrams = LogRatioScorer(
        tokens=ratios, bigram_keys=keys, bigrams=generator.normal(size=len(keys))
    )
    count = round(0.03 * arguments.rows)
    for name, work in (
        ("tokens", lambda: by_tokens(rows)),
        ("tokens and bigrams", lambda: by_bigrams(rows)),
        ("top 3 %", lambda: select([rows], by_tokens, count=count)),
        (
            "top 3 %, without overlap",
            lambda: select([rows], by_tokens, count=count, most_overlap=0.5),
        ),
    ):
        wall, cpu = seconds(work, arguments.repeats)
        print(
            f"  {name:24s} {wall:.3f} s wall, {cpu:.3f} s CPU, "
            f"{arguments.rows / wall:,.0f} rows/s, {wall / floor:.0f} x the floor"
        )
        part = f"choosing rows, {name}, {arguments.rows:,} rows"
        found.append(Ratio(part, "one look-up and sum", "floor", cpu, least, "CPU s"))
    return found


if __name__ == "__main__":
    main()
