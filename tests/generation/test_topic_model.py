"""Topics made of public text: clusters and their words, passages, and what text there is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flower_privsyn.generation.topic_model import (
    TopicModel,
    make_topics,
    passage_of_each,
)
from flower_privsyn.generation.topics import TopicHierarchy, load_topics, probe_of
from flower_privsyn.testing import HashEmbedder
from tests.support.topics import SUBJECTS, documents

EMBEDDER = HashEmbedder()


def fitted(model: TopicModel, texts: list[str]) -> TopicHierarchy:
    return model.fit(texts, EMBEDDER.embed(texts), probe=probe_of(EMBEDDER), about="subjects")


def test_the_subjects_of_a_corpus_are_found_and_named() -> None:
    texts = documents(180)
    topics = fitted(TopicModel(counts=(6,)), texts).levels[-1]
    assert len(topics) == 6
    told = {frozenset(words) for words in topics.keywords}
    assert told == {frozenset(subject.split()) for subject in SUBJECTS}
    # Every text falls where its subject is; shares are those of the corpus.
    found = topics.nearest(EMBEDDER.embed(texts))
    assert len(set(zip(found.tolist(), [n % 6 for n in range(180)], strict=True))) == 6
    assert np.allclose(topics.shares, 1 / 6, atol=0.01)
    assert np.allclose(np.linalg.norm(topics.centres, axis=1), 1.0)


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


def test_topics_of_text_are_written_as_a_run_reads_them(tmp_path: Path) -> None:
    steps: list[int] = []
    model = TopicModel(counts=(3, 6), seed=1)
    made = make_topics(
        documents(180), embedder=EMBEDDER, source="here", model=model, progress=steps.append
    )
    assert sum(steps) == 180
    made.save(tmp_path / "topics.npz")
    read = load_topics(str(tmp_path / "topics.npz"))
    assert read.counts == (3, 6)
    assert read.about == "k-means of 180 passages of here"
    again = make_topics(documents(180), embedder=EMBEDDER, source="here", model=model)
    assert [level.keywords for level in again.levels] == [level.keywords for level in read.levels]
