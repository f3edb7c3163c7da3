"""Topics made of public text: clusters and their words, passages, and what text there is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.topic_model import (
    MadeTopics,
    TopicModel,
    make_topics,
    passage_of_each,
    two_passages_of_each,
)
from flower_privsyn.generation.topics import TopicHierarchy, Topics, probe_of
from flower_privsyn.host.progress import NullProgress
from flower_privsyn.testing import HashEmbedder
from tests.support.topics import SUBJECTS, documents

EMBEDDER = HashEmbedder()


def fitted(model: TopicModel, texts: list[str]) -> MadeTopics:
    return model.fit(texts, EMBEDDER.embed(texts), probe=probe_of(EMBEDDER), about="subjects")


@pytest.mark.parametrize("clustering", ["k-means", "hdbscan"])
def test_the_subjects_of_a_corpus_are_found_and_named(clustering: Any) -> None:
    texts = documents(180)
    made = fitted(TopicModel(counts=(6,), clustering=clustering, least_texts=12), texts)
    topics = made.hierarchy.levels[-1]
    assert len(topics) == 6
    told = {frozenset(words) for words in topics.keywords}
    assert told == {frozenset(subject.split()) for subject in SUBJECTS}
    # Every text falls where its subject is; shares are those of the corpus.
    found = topics.nearest(EMBEDDER.embed(texts))
    assert len(set(zip(found.tolist(), [n % 6 for n in range(180)], strict=True))) == 6
    assert np.allclose(topics.shares, 1 / 6, atol=0.01)
    assert np.allclose(np.linalg.norm(topics.centres, axis=1), 1.0)
    assert made.inside + made.outside == 180
    assert made.outside < 10


def test_dense_places_are_the_finest_level_and_what_is_outside_is_counted() -> None:
    random = np.random.default_rng(5)
    every = sorted({word for subject in SUBJECTS for word in subject.split()})
    mixed = [" ".join(random.choice(every, 8)) for _ in range(40)]
    model = TopicModel(counts=(3, 5, 6, 40), clustering="hdbscan", least_texts=12)
    made = fitted(model, [*documents(180), *mixed])
    # Coarser levels below the six places, and no others.
    assert made.hierarchy.counts == (3, 5, 6)
    assert 20 <= made.outside <= 45
    rows = made.supported(EMBEDDER.embed(mixed[:20]), EMBEDDER.embed(mixed[20:]))
    assert rows[-1].smallest <= rows[-1].median <= made.inside / 6 + 5
    assert rows[-1].smallest > 20
    with pytest.raises(ConfigError, match=r"HDBSCAN finds \d dense places of --least-texts 100 in"):
        fitted(TopicModel(counts=(3,), clustering="hdbscan", least_texts=100), documents(180))


@pytest.mark.parametrize(
    ("settings", "texts", "told"),
    [
        ({"counts": (6,)}, documents(5), "--counts 6 needs at least 6 passages to cluster, and"),
        ({"clustering": "hdbscan"}, documents(29), "--least-texts 30 needs at least 30 passages"),
        ({"counts": (1,)}, documents(1), "--counts 1 needs at least 2 passages to cluster, and"),
        ({"counts": (2,)}, ["1 2 3", "4 5", "a b"], "topics of them would have no keywords"),
        ({"counts": (8,)}, 9 * documents(6), "--counts 8: of 54 passages only 6 differ"),
    ],
)
def test_text_of_which_no_topics_can_be_made(
    settings: dict[str, Any], texts: list[str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        fitted(TopicModel(**settings), texts)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"counts": ()}, "--counts must ascend, and there must be one, got none"),
        ({"counts": (6, 3)}, "--counts must ascend, and there must be one, got 6 3"),
        ({"counts": (3, 3)}, "--counts must ascend"),
        ({"counts": (0,)}, "--counts must be a whole number of at least 1, got 0"),
        ({"least_texts": 1}, "--least-texts must be a whole number of at least 2, got 1"),
        ({"seed": -5}, "--seed must be a whole number"),
        ({"seed": 2**32}, "--seed must be a whole number"),
    ],
)
def test_settings_that_no_clustering_takes(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        TopicModel(**settings)


def test_texts_and_embeddings_of_different_numbers() -> None:
    texts = documents(30)
    with pytest.raises(ConfigError, match="30 texts have 29 embeddings"):
        TopicModel(counts=(3,)).fit(
            texts, EMBEDDER.embed(texts[1:]), probe=probe_of(EMBEDDER), about=""
        )


def test_nothing_is_embedded_of_text_without_words() -> None:
    class Counting(HashEmbedder):
        asked = 0

        def embed(self, texts: Any, *, progress: Any = None) -> Any:
            Counting.asked += len(texts)
            return super().embed(texts, progress=progress)

    with pytest.raises(ConfigError, match="no word of four letters or more"):
        make_topics(
            TopicModel(counts=(2,)),
            ["1 2 3", "4 5", "ab cd"],
            [],
            embedder=Counting(),
            source="numbers",
            max_tokens=64,
            progress=NullProgress(),
        )
    assert Counting.asked == 0


class TestPassages:
    """Of documents of numbered words, so that it can be seen which words are in a passage."""

    LONG = tuple(" ".join(f"w{document}x{place}" for place in range(600)) for document in range(8))

    def test_a_passage_is_a_stretch_of_each_document(self) -> None:
        tokenizer = EMBEDDER.tokenizer
        found = passage_of_each([*self.LONG, " \n "], tokenizer=tokenizer, seed=3, max_tokens=16)
        assert len(found) == len(self.LONG)
        for passage, document in zip(found, self.LONG, strict=True):
            assert f" {passage} " in f" {document} "
            assert 1 <= len(passage.split()) <= 16
        # Not where documents begin, and where the seed says.
        assert sum(map(str.startswith, self.LONG, found)) <= 1
        again = passage_of_each(self.LONG, tokenizer=tokenizer, seed=3, max_tokens=16)
        assert again == found
        assert passage_of_each(self.LONG, tokenizer=tokenizer, seed=4, max_tokens=16) != found

    def test_no_word_is_in_both_passages_of_a_document(self) -> None:
        short = "only five words are here"
        given = [self.LONG[0], "one", short, "", self.LONG[1]]
        first, second = two_passages_of_each(
            given, tokenizer=EMBEDDER.tokenizer, seed=0, max_tokens=600
        )
        # Nothing is cut at so many tokens but by the window: the short one is there whole.
        assert (first[1], second[1]) == ("only five", "words are here")
        assert len(first) == len(second) == 3
        for one, two in zip(first, second, strict=True):
            assert not set(one.split()) & set(two.split())


def test_what_a_corpus_supports_is_counted() -> None:
    topics = Topics(
        centres=np.eye(3, dtype=np.float32),
        keywords=(("a",), ("b",), ("c",)),
        shares=np.array([0.5, 0.3, 0.2]),
    )
    hierarchy = TopicHierarchy(levels=(topics,), parents=(), probe=topics.centres[0])
    first = topics.centres[[0, 0, 1, 2]]
    second = topics.centres[[0, 1, 1, 1]]
    made = MadeTopics(hierarchy=hierarchy, inside=10, outside=90)
    (found,) = made.supported(first, second)
    assert (found.topics, found.smallest, found.median) == (3, 2, 3)
    assert found.same == 2 / 4
    # By chance: (2, 1, 1) of one side and (1, 3, 0) of the other, of 16 pairs.
    assert found.chance == (2 * 1 + 1 * 3 + 1 * 0) / 16
