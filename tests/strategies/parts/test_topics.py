"""What public text is about, and what a release says of it."""

from __future__ import annotations

import numpy as np
import pytest

from flower_privsyn.strategies.parts.sketch_reading import BlockReading
from flower_privsyn.strategies.parts.topics import Topics

#: 200 words, fifty to a topic, then tokens that no topic is made of.
WORDS = [
    f" {topic}word{one}{other}" for topic in "abcd" for one in "qrstu" for other in "qrstuvwxyz"
]
WORDS += [" the", "ing", " 1984", " everywhere"]


def documents(count: int = 300) -> list[np.ndarray]:
    """Documents on one of four topics each, the first on half of them."""
    chance = np.random.default_rng(0)
    made = []
    for number in range(count):
        topic = 0 if number % 2 else number // 2 % 3 + 1
        own = chance.integers(50 * topic, 50 * topic + 50, size=12)
        made.append(np.concatenate((own, [200, 201, 202, 203] * 5)))
    return made


def reading(log_ratio: np.ndarray, error: np.ndarray) -> BlockReading:
    ones = np.ones(len(WORDS))
    return BlockReading(
        name="tokens",
        keys=None,
        public=ones,
        estimate=ones,
        estimate_error=ones,
        rate=ones,
        log_ratio=log_ratio,
        standard_error=error,
        centre=0.0,
    )


def test_documents_are_told_apart_by_their_words() -> None:
    topics = Topics.of(documents(), WORDS, count=4)
    assert topics is not None
    assert topics.share.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(topics.telling.sum(axis=1), 1.0)
    assert sorted(topics.share.round(2).tolist()) == pytest.approx([1 / 6] * 3 + [0.5], abs=0.03)
    # What everybody writes, pieces of words and numbers are nobody's.
    assert not topics.telling[:, 200:].any()
    names = topics.names(WORDS, most=3)
    assert len(names) == 4
    assert {name[0] for name in names} == {"a", "b", "c", "d"}
    assert all(len({word[0] for word in name.split(", ")}) == 1 for name in names)


def test_the_same_topics_every_time() -> None:
    one, other = (Topics.of(documents(), WORDS, count=4, seed=3) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.telling.tobytes() == other.telling.tobytes()


def test_a_topic_has_the_log_ratio_of_its_words() -> None:
    topics = Topics.of(documents(), WORDS, count=4)
    assert topics is not None
    ratios = np.zeros(len(WORDS))
    ratios[:50] = 0.7
    found, errors = topics.log_ratios(reading(ratios, np.full(len(WORDS), 0.1)))
    largest = int(topics.share.argmax())  # of the words in front
    assert found[largest] == pytest.approx(0.7, abs=0.01)
    assert np.delete(found, largest) == pytest.approx([0.0] * 3, abs=0.02)
    # Of so many words' errors of 0.1 the mean has less, and not less than of fifty alike.
    assert 0.1 / 50**0.5 < errors[largest] < 0.1 / 10**0.5


def test_too_little_text_has_no_topics() -> None:
    assert Topics.of(documents(12), WORDS, count=4) is None
    assert Topics.of([], WORDS) is None
