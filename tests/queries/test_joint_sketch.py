"""Joint sketches: counts by definition, a norm of 1 that is attained and never passed, an audit."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter

import numpy as np
import pytest

from flower_privsyn.privacy.mechanisms import GRID
from flower_privsyn.queries import Cohort, JointSketch, joint_sketch
from flower_privsyn.queries.joint_sketch import frequent_bigrams
from flower_privsyn.testing import random_cohort

V = 23
#: Bigrams of 23 tokens: every third.
KEYS = np.arange(0, V * V, 3)
MIXTURES = [
    JointSketch(),
    JointSketch(bigram_share=0.999),
    JointSketch(bigram_share=0.5, max_tokens_per_user=40),
    JointSketch(max_occurrences=2),
    JointSketch(bigram_share=0.4, max_occurrences=1),
    JointSketch(bigram_share=0.7, max_tokens_per_user=9),
]
mixtures = pytest.mark.parametrize(
    "query",
    MIXTURES,
    ids=lambda q: f"{q.bigram_share}-{q.max_tokens_per_user}-{q.max_occurrences}",
)


def broadcast_for(query: JointSketch) -> dict[str, np.ndarray]:
    return query.broadcast(V, KEYS)


def by_definition(records: list[list[int]], query: JointSketch) -> np.ndarray:
    """One user's answer, token by token."""
    tokens: Counter[int] = Counter()
    bigrams: Counter[int] = Counter()
    left = query.max_tokens_per_user
    table = {int(key): place for place, key in enumerate(KEYS)}
    for record in records:
        counted, left = record[:left], left - len(record[:left])
        tokens.update(token for token in counted if 0 <= token < V)
        for a, b in itertools.pairwise(counted):
            if 0 <= a < V and 0 <= b < V and a * V + b in table:
                bigrams[a * V + b] += 1
    for counts in (tokens, bigrams):
        for item in counts:
            counts[item] = min(counts[item], query.max_occurrences or counts[item])
    parts = []
    for counts, size, share in (
        (tokens, V, 1 - query.bigram_share),
        (bigrams, len(KEYS), query.bigram_share),
    ):
        if share == 0:
            continue
        row = np.zeros(size)
        places = counts
        if counts is bigrams:
            places = Counter({table[item]: count for item, count in counts.items()})
        for place, count in places.items():
            row[place] = count
        norm = math.sqrt(float((row**2).sum()))
        parts.append(math.sqrt(share) * row / (norm or 1.0))
    return np.concatenate(parts)


def users_of(cohort: Cohort) -> list[list[list[int]]]:
    return [
        [record.tolist() for record in cohort.records[cohort.owners == user]]
        for user in range(cohort.num_users)
    ]


class TestCounts:
    @mixtures
    def test_follow_the_definition(self, query: JointSketch) -> None:
        cohort = random_cohort(
            num_users=30, max_records=5, dimension=V, seed=1, empty=0.2, reads="tokens"
        )
        cohort.records[3] = np.array([-1, 2, V, 5, 2, 5, 2**40, 1])  # some are no tokens
        expected = np.array([by_definition(user, query) for user in users_of(cohort)])
        broadcast = broadcast_for(query)
        assert expected.shape == (30, query.answer_length(broadcast))
        assert np.abs(query.statistic(cohort, broadcast) - expected).max() < 2e-8
        # Contributions are cut to the grid, and nothing else happens to them.
        cut = np.trunc(query.statistic(cohort, broadcast) / GRID) * GRID
        assert np.array_equal(query.contribution(cohort, broadcast), cut)

    def test_are_the_same_bits_on_every_machine(self) -> None:
        query = MIXTURES[-1]
        cohort = random_cohort(num_users=9, max_records=4, dimension=V, seed=5, reads="tokens")
        answer = query.answer(cohort, broadcast_for(query))
        assert hashlib.sha256(answer.astype("<f8").tobytes()).hexdigest() == FROZEN_ANSWER


class TestPublicText:
    def test_frequent_bigrams(self) -> None:
        generator = np.random.default_rng(9)
        rows = [generator.integers(0, V, size=n) for n in generator.integers(0, 40, size=80)]
        counts: Counter[int] = Counter()
        for row in rows:
            counts.update(int(a) * V + int(b) for a, b in itertools.pairwise(row))
        for most in (1, 50, V * V):
            expected = sorted(sorted(counts, key=lambda key: (-counts[key], key))[:most])
            assert frequent_bigrams([rows], vocabulary=V, most=most).tolist() == expected
        assert frequent_bigrams(([row] for row in rows), vocabulary=V, most=50).tolist() == sorted(
            sorted(counts, key=lambda key: (-counts[key], key))[:50]
        )

    @mixtures
    def test_item_moments_follow_the_definition(
        self, query: JointSketch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(joint_sketch, "_BATCH_TOKENS", 100)
        cohort = random_cohort(
            num_users=20, max_records=5, dimension=V, seed=10, empty=0.2, reads="tokens"
        )
        broadcast = broadcast_for(query)
        moments = query.item_moments(cohort, broadcast)
        blocks = {block.name: block for block in query.blocks(broadcast)}
        assert set(moments) == set(blocks)
        for name, block in blocks.items():
            amounts = query.statistic(cohort, broadcast)[:, block.columns] / block.weight
            assert moments[name].num_users == 20
            assert np.allclose(moments[name].mean, amounts.mean(axis=0), atol=1e-7)
            assert np.allclose(moments[name].square, (amounts**2).mean(axis=0), atol=1e-7)


#: Whole numbers, quotients and roots of IEEE 754 give it on any machine.
FROZEN_ANSWER = "c6f8eda6eef94145b5039eb3cbbb9127d85eff719d768a9e4a02c6bad3580803"
