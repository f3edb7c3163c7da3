"""A joint sketch's answer, beside one pass over the tokens and scikit-learn's counts.

Tokens follow Zipf's law, so that a part of all bigrams is in the table, as with text.
"""

from __future__ import annotations

import numpy as np

from benchmarks import Other, Ratio, compared
from flower_privsyn.queries import Cohort, JointSketch
from flower_privsyn.queries.joint_sketch import frequent_bigrams

VOCABULARY, BIGRAMS, TOKENS = 8192, 150_000, 400


def measure(*, users: int = 3000) -> list[Ratio]:
    """Of users with 400 tokens each."""
    generator = np.random.default_rng(0)
    law = 1.0 / np.arange(3, VOCABULARY + 3)
    texts = list(generator.choice(VOCABULARY, size=(users, TOKENS), p=law / law.sum()))
    cohort = Cohort.of(texts, np.arange(users), users)
    query = JointSketch(bigram_share=0.5)
    keys = frequent_bigrams([texts], vocabulary=VOCABULARY, most=BIGRAMS)
    asked = query.broadcast(VOCABULARY, keys)

    def counted() -> object:
        """Every user's tokens alone: nothing is clipped or added up."""
        from sklearn.feature_extraction.text import CountVectorizer

        counter = CountVectorizer(analyzer=np.ndarray.tolist, vocabulary=range(VOCABULARY))
        return counter.transform(texts)

    return compared(
        f"joint sketch, tokens and bigrams, {users:,} users",
        lambda: query.answer(cohort, asked),
        Other("one bincount of tokens (floor)", lambda: np.bincount(np.concatenate(texts))),
        Other("scikit-learn's CountVectorizer, tokens (peer)", counted),
    )
