"""Topics of public text: found, named, nested, dealt by, and refused where they are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.topics import (
    condition,
    load_topics,
    make_topics,
    quotas,
)
from flower_privsyn.testing import HashEmbedder
from tests.support.topics import SUBJECTS, documents

EMBEDDER = HashEmbedder()


def test_the_subjects_of_a_corpus_are_found_named_and_read_again(tmp_path: Path) -> None:
    steps: list[int] = []
    texts = [text.replace("doctor", "ärztin") for text in documents(180)]
    make_topics(texts, embedder=EMBEDDER, counts=(3, 6), seed=1, progress=steps.append).save(
        tmp_path / "topics.npz"
    )
    assert sum(steps) == 180
    topics = load_topics(str(tmp_path / "topics.npz"))
    assert topics.counts == (3, 6)
    coarse, fine = topics.at(3), topics.at(6)
    assert {frozenset(words) for words in fine.keywords} == {
        frozenset(subject.replace("doctor", "ärztin").split()) for subject in SUBJECTS
    }
    # Every text falls where its subject is; shares are those of the corpus.
    found = fine.nearest(EMBEDDER.embed(texts)).tolist()
    assert len(set(zip(found, [number % 6 for number in range(180)], strict=True))) == 6
    assert np.allclose(fine.shares, 1 / 6, atol=0.01)
    assert np.allclose(np.linalg.norm(fine.centres, axis=1), 1.0, atol=1e-3)
    # Fine topics fall into coarse ones as wholes.
    above = coarse.nearest(fine.centres)
    for topic in range(3):
        assert coarse.shares[topic] == pytest.approx(fine.shares[above == topic].sum(), abs=1e-6)
    for other in (HashEmbedder(16), _Turned()):
        with pytest.raises(ConfigError, match="another embedding model"):
            topics.check_embedder(other, setting="these")
    topics.check_embedder(EMBEDDER, setting="these")


def test_the_bundled_ones() -> None:
    topics = load_topics()
    assert 64 in topics.counts
    for count in topics.counts:
        level = topics.at(count)
        assert level.centres.shape == (count, 384)
        assert all(1 <= len(words) <= 10 for words in level.keywords)
        assert level.shares.min() > 0


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
