"""Variety of a set of texts."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.evaluation.diversity import diversity


def test_distinct_n_by_hand() -> None:
    found = diversity(["a b a b", "a b"])
    # 6 words of 2 kinds; "a b" twice and "b a" in the first text, "a b" in the second.
    assert found.distinct == {1: 2 / 6, 2: 2 / 4, 3: 2 / 2, 4: 1.0}
    assert (found.words, found.texts, found.distinct_texts) == (6, 2, 1.0)
    assert found.self_similarity is None


def test_equal_texts() -> None:
    found = diversity(["The cat.", "The cat.", "A dog."], embeddings=np.eye(3)[[0, 0, 1]])
    assert found.distinct_texts == 2 / 3
    assert found.self_similarity == pytest.approx(1 / 3)


def test_similarities_equal_brute_force() -> None:
    rows = np.random.default_rng(0).standard_normal((30, 5)).astype(np.float32)
    unit = rows.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, np.nan)
    found = diversity(["x"] * 30, embeddings=rows)
    assert found.self_similarity == pytest.approx(np.nanmean(cosines), rel=1e-9)


def test_corpora_of_different_sizes_are_compared_on_as_many_words() -> None:
    words = [f"w{i}" for i in range(50)]
    generator = np.random.default_rng(1)
    texts = [" ".join(generator.choice(words, 20)) for _ in range(400)]
    small, large = (diversity(texts[:count], num_words=500) for count in (50, 400))
    assert small.words == large.words == 500
    assert small.distinct[2] == pytest.approx(large.distinct[2], abs=0.05)
    # While over all words the larger one looks much poorer.
    assert diversity(texts, num_words=10**6).distinct[2] < small.distinct[2] / 2
