"""Topics of public text: found, named, nested, dealt by, and refused where they are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.topics import (
    condition,
    load_topics,
    quotas,
)
from flower_privsyn.testing import HashEmbedder
from tests.support.topics import write_topics

EMBEDDER = HashEmbedder()


class TestTopics:
    def test_levels_are_nested_and_survive_the_disk(self, tmp_path: Path) -> None:
        topics = load_topics(str(write_topics(tmp_path)))
        assert topics.counts == (3, 6)
        assert topics.about == "made-up subjects"
        (parents,) = topics.parents
        coarse, fine = topics.at(3), topics.at(6)
        for topic in range(3):
            inside = parents == topic
            assert coarse.shares[topic] == pytest.approx(fine.shares[inside].sum())
            below = {word for place in np.flatnonzero(inside) for word in fine.keywords[place]}
            assert set(coarse.keywords[topic]) <= below


class TestReading:
    def test_the_bundled_ones(self) -> None:
        topics = load_topics()
        assert 64 in topics.counts
        for count in topics.counts:
            level = topics.at(count)
            assert level.centres.shape == (count, 384)
            assert all(1 <= len(words) <= 10 for words in level.keywords)
            assert level.shares.min() > 0
        for coarse, parents in zip(topics.counts, topics.parents, strict=False):
            assert set(parents.tolist()) == set(range(coarse))

    def test_another_embedding_model(self, tmp_path: Path) -> None:
        topics = load_topics(str(write_topics(tmp_path)))
        topics.check_embedder(EMBEDDER, setting="these")
        for other in (HashEmbedder(16), _Turned()):
            with pytest.raises(ConfigError, match="these were made with another embedding model"):
                topics.check_embedder(other, setting="these")


class _Turned(HashEmbedder):
    """Another model of the same dimension."""

    def embed(self, texts, *, progress=None):
        return -super().embed(texts, progress=progress)


class TestDealing:
    def test_by_largest_remainders(self) -> None:
        assert quotas(np.array([5.0, 3.0, 2.0]), 10).tolist() == [5, 3, 2]
        assert quotas(np.array([1.0, 1.0, 1.0]), 4).tolist() == [2, 1, 1]
        assert quotas(np.array([0.6, -7.0, 0.3, 0.1]), 5).tolist() == [3, 0, 2, 0]

    def test_always_exactly_and_never_to_an_empty_topic(self) -> None:
        random = np.random.default_rng(1)
        for total in (1, 7, 64, 10_001):
            weights = random.standard_normal(64) * 10.0 ** random.integers(-300, 300)
            found = quotas(weights, total)
            assert found.sum() == total
            assert not found[weights <= 0].any()
            shares = np.maximum(weights / weights.max(), 0)
            assert np.abs(found - shares * (total / shares.sum())).max() < 1


def test_a_condition_is_what_the_bundled_model_was_trained_on() -> None:
    assert condition(["cell", "gene"], document_type="textbook") == (
        "Document Type: textbook\nKeywords: cell, gene\nDocument:\n"
    )
    assert condition(["cell"]) == "Keywords: cell\nDocument:\n"
