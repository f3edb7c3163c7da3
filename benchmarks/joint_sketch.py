"""A joint sketch's answer and the choosing of rows by it, beside their floors.

    python -m benchmarks.joint_sketch [--users 3000] [--tokens 400] [--bigrams 150000]
        [--rows 100000] [--repeats 5]

Tokens follow Zipf's law over 8,192, so that a part of all bigrams is in the table, as with text.
The floor of an answer is to read every token once and add it to a sum, `np.bincount`; of choosing,
to look every token up and add along the rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks import Ratio, compared, shown
from flower_privsyn.data.public_rows import TokenRows
from flower_privsyn.queries import Cohort, JointSketch
from flower_privsyn.queries.joint_sketch import frequent_bigrams
from flower_privsyn.training.selection import LogRatioScorer, select

VOCABULARY = 8192


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=3000)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--bigrams", type=int, default=150_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(given)
    generator = np.random.default_rng(0)
    law = 1.0 / np.arange(3, VOCABULARY + 3)
    law /= law.sum()
    shape = (arguments.users, arguments.tokens)
    texts = list(generator.choice(VOCABULARY, size=shape, p=law).astype(np.int64))
    cohort = Cohort.of(texts, np.arange(arguments.users), arguments.users)
    keys = frequent_bigrams([texts], vocabulary=VOCABULARY, most=arguments.bigrams)
    found = []
    for name, query in (
        ("tokens", JointSketch()),
        ("tokens and bigrams", JointSketch(bigram_share=0.5)),
    ):
        asked = query.broadcast(VOCABULARY, keys)
        found += compared(
            f"joint sketch, {name}, {arguments.users:,} users",
            lambda q=query, b=asked: q.answer(cohort, b),  # type: ignore[misc]
            {("one bincount", "floor"): lambda: np.bincount(np.concatenate(texts))},
            repeats=arguments.repeats,
        )
    flat = generator.choice(VOCABULARY, size=(arguments.rows, 64), p=law)
    rows, each, ratios = TokenRows.of(flat), list(flat), generator.normal(size=VOCABULARY)
    by_tokens = LogRatioScorer(tokens=ratios)
    by_bigrams = LogRatioScorer(
        tokens=ratios, bigram_keys=keys, bigrams=generator.normal(size=len(keys))
    )
    count = round(0.03 * arguments.rows)
    ways: dict[str, Callable[[], object]] = {
        "tokens": lambda: by_tokens(rows),
        "tokens and bigrams": lambda: by_bigrams(rows),
        "top 3 %": lambda: select(each, by_tokens(rows), count=count),
        "without overlap": lambda: select(
            list(flat), by_tokens(rows), count=count, most_overlap=0.5
        ),
    }
    for name, work in ways.items():
        found += compared(
            f"choosing rows, {name}, {arguments.rows:,} rows",
            work,
            {("one look-up and sum", "floor"): lambda: ratios[flat].sum(axis=1)},
            repeats=arguments.repeats,
        )
    return shown(found)


if __name__ == "__main__":
    main()
