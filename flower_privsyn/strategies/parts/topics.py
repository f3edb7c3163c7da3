"""What public text is about, and which of it users write more of than others do.

Topics are those of a mixture of multinomials over the public documents (Nigam, McCallum, Thrun,
Mitchell, "Text Classification from Labeled and Unlabeled Documents using EM", Machine Learning
2000), found by EM. They are made of public text alone; a release says how much more users have of
the tokens that make a topic what it is. These need tokens alone: where records are embeddings,
topics are points among them (`flower_privsyn.generation.topics`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from flower_privsyn.strategies.parts.sketch_reading import BlockReading

Float64Array = npt.NDArray[np.float64]

#: Documents that decide what the topics are, and tokens of each that are looked at.
_DOCUMENTS: Final = 6000
_TOKENS: Final = 256
#: A word in fewer documents says nothing; in more than this share of them it is no topic's.
_RARE: Final = 5
_COMMON: Final = 0.1
#: How much of a document's likelihood counts, step by step: all of it at once would leave every
#: document where it happened to begin (deterministic annealing, Ueda and Nakano 1998).
_TEMPERING: Final = (*(0.02 * 1.2**step for step in range(22)), *(1.0,) * 8)
#: Occurrences of every token that a topic has beforehand.
_SMOOTHING: Final = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Topics:
    """What public documents are about.

    Attributes:
        share: (k,) of the documents; adds up to 1.
        telling: (k, V) how much a token makes a topic what it is: weights >= 0 that add up to 1,
            of what the topic has of it beyond what all documents have.
    """

    share: Float64Array
    telling: Float64Array

    @classmethod
    def of(
        cls,
        documents: Sequence[npt.NDArray[np.int64]],
        words: Sequence[str],
        *,
        count: int = 16,
        seed: int = 0,
    ) -> Self | None:
        """Find the topics of public text; None in text that has too few documents.

        Args:
            documents: tokens of each.
            words: (V,) the tokens as text. Whole words of four letters or more make topics: the
                rest is grammar.
            count: k, topics.
            seed: of where the topics begin.
        """
        vocabulary = len(words)
        whole = [word.startswith(" ") and len(word) > 4 and word[1:].isalpha() for word in words]
        every = max(1, len(documents) // _DOCUMENTS)
        owners, tokens, counts = _sparse(documents[::every], vocabulary)
        in_documents = np.bincount(tokens, minlength=vocabulary)
        num_documents = len(documents[::every])
        used = (in_documents >= _RARE) & (in_documents <= _COMMON * num_documents) & whole
        kept = used[tokens]
        owners, tokens, counts = owners[kept], tokens[kept], counts[kept]
        present, owners = np.unique(owners, return_inverse=True)
        if len(present) < 4 * count:
            return None
        chance = np.random.default_rng(seed)
        belongs = chance.dirichlet(np.full(count, 10.0), size=len(present))
        for share_of_likelihood in _TEMPERING:
            shares = (belongs.sum(axis=0) + 1.0) / (len(present) + count)
            said = np.log(_words(owners, tokens, counts, belongs, vocabulary))
            scores = np.log(shares) + _summed(owners, said[:, tokens], counts)
            scores *= share_of_likelihood
            scores -= scores.max(axis=1, keepdims=True)
            belongs = np.exp(scores)
            belongs /= belongs.sum(axis=1, keepdims=True)
        own = _words(owners, tokens, counts, belongs, vocabulary)
        everywhere = np.bincount(tokens, weights=counts, minlength=vocabulary)
        more = np.maximum(own - everywhere / everywhere.sum(), 0.0) * used
        weights = np.maximum(more.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        return cls(share=belongs.mean(axis=0), telling=more / weights)

    def names(self, words: Sequence[str], *, most: int = 6) -> list[str]:
        """Each topic by the words that make it what it is.

        Args:
            words: (V,) the tokens as text.
            most: words of each.
        """
        named = []
        for weights in self.telling:
            best = np.argsort(-weights, kind="stable")
            told = (words[token].strip().lower() for token in best[: 2 * most] if weights[token])
            named.append(", ".join(list(dict.fromkeys(told))[:most]))
        return named

    def log_ratios(self, tokens: BlockReading) -> tuple[Float64Array, Float64Array]:
        """How much more of each topic users have: what a release says of its tokens, on average.

        Args:
            tokens: what the release says of each token.

        Returns:
            (k,) log-ratios of private to public, and (k,) their standard errors, the tokens' errors
            being independent of one another.
        """
        ratios = self.telling @ tokens.log_ratio
        errors: Float64Array = np.sqrt(self.telling**2 @ tokens.standard_error**2)
        return ratios, errors


def _sparse(
    documents: Sequence[npt.NDArray[np.int64]], vocabulary: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Float64Array]:
    """Which document has which token how often, in the documents' order."""
    parts = [document[:_TOKENS] for document in documents]
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    keys, counts = np.unique(owners * vocabulary + tokens, return_counts=True)
    found, items = np.divmod(keys, vocabulary)
    return found, items, counts.astype(np.float64)


def _words(
    owners: npt.NDArray[np.int64],
    tokens: npt.NDArray[np.int64],
    counts: Float64Array,
    belongs: Float64Array,
    vocabulary: int,
) -> Float64Array:
    """(k, V) how often each topic's documents have each token."""
    words = np.stack(
        [
            np.bincount(tokens, weights=counts * topic[owners], minlength=vocabulary)
            for topic in belongs.T
        ]
    )
    smoothed = np.asarray(words, dtype=np.float64) + _SMOOTHING
    frequencies: Float64Array = smoothed / smoothed.sum(axis=1, keepdims=True)
    return frequencies


def _summed(
    owners: npt.NDArray[np.int64], values: Float64Array, counts: Float64Array
) -> Float64Array:
    """(n, k) per document the sum of its tokens' values, as often as it has them."""
    size = int(owners[-1]) + 1
    return np.stack(
        [np.bincount(owners, weights=counts * row, minlength=size) for row in values], axis=1
    )
