"""Topics made of public text: clusters and their words, passages, and what text there is for."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.topic_model import (
    TopicModel,
    passage_of_each,
    supported,
    two_passages_of_each,
)
from flower_privsyn.generation.topics import Topics, probe_of
from flower_privsyn.testing import HashEmbedder
from tests.support.topics import SUBJECTS, documents

EMBEDDER = HashEmbedder()


@pytest.mark.parametrize("clustering", ["k-means", "hdbscan"])
def test_the_subjects_of_a_corpus_are_found_and_named(clustering: str) -> None:
    texts = documents(180)
    made = TopicModel(counts=(6,), clustering=clustering, least_texts=12).fit(  # type: ignore[arg-type]
        texts, EMBEDDER.embed(texts), probe=probe_of(EMBEDDER), about="subjects"
    )
    topics = made.levels[-1]
    assert len(topics) == 6
    told = {frozenset(words) for words in topics.keywords}
    assert told == {frozenset(subject.split()) for subject in SUBJECTS}
    # Every text falls where its subject is; shares are those of the corpus.
    found = topics.nearest(EMBEDDER.embed(texts))
    assert len(set(zip(found.tolist(), [n % 6 for n in range(180)], strict=True))) == 6
    assert np.allclose(topics.shares, 1 / 6, atol=0.01)
    assert np.allclose(np.linalg.norm(topics.centres, axis=1), 1.0)


def test_fewer_documents_than_topics() -> None:
    texts = documents(5)
    with pytest.raises(ConfigError, match="6 topics need at least as many documents, got 5"):
        TopicModel(counts=(6,)).fit(
            texts, EMBEDDER.embed(texts), probe=probe_of(EMBEDDER), about=""
        )


def test_text_without_words() -> None:
    texts = ["1 2 3", "4 5", "a b"]
    with pytest.raises(ConfigError, match="topics of them would have no keywords"):
        TopicModel(counts=(2,)).fit(
            texts, EMBEDDER.embed(texts), probe=probe_of(EMBEDDER), about=""
        )


@pytest.mark.parametrize("counts", [(), (6, 3), (3, 3)])
def test_numbers_of_topics_that_do_not_ascend(counts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="the numbers of topics must ascend"):
        TopicModel(counts=counts).check(100)


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
    first = topics.centres[[0, 0, 1, 2]]
    second = topics.centres[[0, 1, 1, 1]]
    found = supported(topics, passages=10, first=first, second=second)
    assert (found.topics, found.smallest, found.median) == (3, 2, 3)
    assert found.same == 2 / 4
    # By chance: (2, 1, 1) of one side and (1, 3, 0) of the other, of 16 pairs.
    assert found.chance == (2 * 1 + 1 * 3 + 1 * 0) / 16
