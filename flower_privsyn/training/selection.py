"""Choosing public text by what was released: scores, and the best rows of a stream.

Rows of public text are scored from releases alone, so choosing costs nothing. A corpus may be of
any size: it is read in chunks, and the rows that may still be chosen are all that is kept.

Wang et al., "Can Public Large Language Models Help Private
Cross-device Federated Learning?" (NAACL 2024) choose public text by a private model
(`flower_privsyn.training.distribution_matching`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from flower_privsyn.checks import PositiveInt, Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.queries.joint_sketch import find_bigrams

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: Tokens of an n-gram; a shorter row is one n-gram.
NGRAM: Final = 8

#: How many times as many rows as are chosen are held ready for those that overlap.
SPARE: Final = 2.0

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """A chunk of public text.

    Attributes:
        tokens: (n,) the tokens of each row, in the release's vocabulary; a matrix will do.
    """

    tokens: Sequence[npt.NDArray[np.int64]] | npt.NDArray[Any]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.tokens)


class Scorer(Protocol):
    """How much a row of public text is wanted: from released and public numbers alone."""

    def __call__(self, rows: Rows) -> Float64Array:
        """Score rows, each by itself.

        Args:
            rows: the n rows.

        Returns:
            (n,) the higher, the more wanted; not finite for a row that cannot be chosen.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class LogRatioScorer:
    """Log-likelihood ratio of private to public text, by tokens or by tokens and bigrams.

    A token b after a token a counts min(r(ab) - r(a), max(r(b), r(ab))), r the log-ratios of a
    release: a model of bigrams in which nothing gains by following what users do not write. A pair
    that the release says nothing of, and a row's first token, counts r(b). A row's score is the
    average over its tokens. With weights, all that counts as b is
    multiplied by b's: frequent tokens vary from row to row by style more than by chance, and a
    plain sum trusts them too much (`surprisal_weights`).

    Attributes:
        tokens: (vocabulary,) log-ratios.
        bigram_keys: (K,) first * vocabulary + second, increasing; None for tokens alone.
        bigrams: (K,) their log-ratios.
        weights: (vocabulary,) of what counts as a token; None for 1 each.
    """

    tokens: Float64Array
    bigram_keys: IntArray | None = None
    bigrams: Float64Array | None = None
    weights: Float64Array | None = None

    def __post_init__(self) -> None:
        if (self.bigram_keys is None) != (self.bigrams is None):
            raise ValueError("bigrams need keys and log-ratios")
        if self.weights is not None and self.weights.shape != self.tokens.shape:
            raise ValueError(f"weights must be {self.tokens.shape}, got {self.weights.shape}")

    def __call__(self, rows: Rows) -> Float64Array:
        """Score rows; one without tokens has no score (minus infinity)."""
        flat, lengths = _flattened(rows)
        scores = np.full(len(rows), -np.inf)
        if not len(flat):
            return scores
        values = self.tokens[flat]
        if self.bigram_keys is not None and self.bigrams is not None:
            second = np.arange(1, len(flat))
            begins = np.cumsum(lengths)[:-1]
            second = np.delete(second, begins[(begins > 0) & (begins < len(flat))] - 1)
            keys = flat[second - 1] * len(self.tokens) + flat[second]
            places, known = find_bigrams(self.bigram_keys, keys)
            second, places = second[known], places[known]
            alone, pairs = self.tokens[flat[second]], self.bigrams[places]
            # What users hardly write has log-ratios that nobody knows the depth of: their
            # differences would say that it is followed by what they write much of.
            after = np.minimum(pairs - self.tokens[flat[second - 1]], np.maximum(alone, pairs))
            values[second] += after - alone
        if self.weights is not None:
            values *= self.weights[flat]
        filled = lengths > 0
        starts = (np.cumsum(lengths) - lengths)[filled]
        scores[filled] = np.add.reduceat(values, starts) / lengths[filled]
        return scores


def surprisal_weights(counts: npt.NDArray[Any]) -> Float64Array:
    """Weights that grow with how rare a token is in public text: -log p, mean 1 by p.

    Args:
        counts: (vocabulary,) how often public text has each token, at least one of them > 0; half
            an occurrence is added to each.

    Returns:
        (vocabulary,) > 0.
    """
    shares = np.asarray(counts, dtype=np.float64) + 0.5
    shares /= shares.sum()
    weights: Float64Array = -np.log(shares)
    weights /= float(shares @ weights)
    return weights


@dataclass(frozen=True, kw_only=True)
class SelectionRule(Settings):
    """Which rows are chosen, given their scores."""

    count: Annotated[PositiveInt, "how many; fewer where there are not as many to choose from."]
    most_overlap: Annotated[
        float,
        Gt(0),
        Le(1),
        "a row is left out of whose n-grams more than this share are in rows chosen before it; 1 "
        "leaves nothing out.",
    ] = 1.0

    @staticmethod
    def count_of(share: float, num_rows: int) -> int:
        """How many rows a share of a corpus is, at least one.

        Args:
            share: in (0, 1].
            num_rows: of the corpus.
        """
        if not 0 < share <= 1:
            raise ConfigError(f"share must be in (0, 1], got {share!r}")
        return max(1, round(share * num_rows))


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """The rows that were chosen, in the order in which they were.

    Attributes:
        indices: (k,) their places in the stream.
        scores: (k,).
        tokens: (k,) the tokens of each.
        num_rows: rows that were looked at.
        overlapping: rows left out because they overlap with better ones.
    """

    indices: IntArray
    scores: Float64Array
    tokens: list[npt.NDArray[np.int64]]
    num_rows: int
    overlapping: int


def select(chunks: Iterable[Rows], scorer: Scorer, rule: SelectionRule) -> Selection:
    """Choose rows of a stream.

    In the order of their scores, rows are chosen until there are enough; passed over is who has no
    finite score, or overlaps too much with who was chosen before. Equal ones go by their place in
    the stream. The result depends on the rows and the rule, not on how they are dealt to chunks.
    Rows that overlap are replaced by those held ready, so with very many of them fewer than `count`
    are chosen.

    Memory is that of one chunk and of twice the rows that may still be chosen: `count` of them
    times `SPARE`.

    Args:
        chunks: public rows, in order.
        scorer: how much each is wanted.
        rule: which are chosen.
    """
    most = math.ceil((SPARE if rule.most_overlap < 1 else 1.0) * rule.count)
    scores, indices = np.zeros(0), np.zeros(0, dtype=np.int64)
    tokens: list[npt.NDArray[np.int64]] = []
    num_rows = 0

    def best() -> None:
        """Keep the first rows, as many as may be chosen, those with the highest scores first."""
        nonlocal scores, indices, tokens
        kept = np.lexsort((indices, -scores))[:most]
        scores, indices = scores[kept], indices[kept]
        tokens = [tokens[row] for row in kept.tolist()]

    for chunk in chunks:
        found = np.asarray(scorer(chunk), dtype=np.float64)
        if found.shape != (len(chunk),):
            raise ValueError(f"{len(chunk)} rows got scores of shape {found.shape}")
        least = scores.min() if len(scores) >= most else -np.inf
        rows = np.flatnonzero(np.isfinite(found) & (found > least))
        scores = np.concatenate((scores, found[rows]))
        indices = np.concatenate((indices, rows + num_rows))
        # Copies: a view would keep its whole chunk in memory.
        tokens.extend(np.array(chunk.tokens[row], dtype=np.int64) for row in rows.tolist())
        num_rows += len(chunk)
        best()
    chosen: list[int] = []
    known: set[int] = set()
    overlapping = 0
    for row, own in enumerate(_ngrams(tokens) if rule.most_overlap < 1 else [set()] * len(tokens)):
        if len(chosen) == rule.count:
            break
        if own and len(known & own) > rule.most_overlap * len(own):
            overlapping += 1
            continue
        known |= own
        chosen.append(row)
    return Selection(
        indices=indices[chosen],
        scores=scores[chosen],
        tokens=[tokens[row] for row in chosen],
        num_rows=num_rows,
        overlapping=overlapping,
    )


def _ngrams(rows: Sequence[npt.NDArray[np.int64]]) -> Iterator[set[int]]:
    """The distinct n-grams of each row, as hashes; of a shorter row the one that it is."""
    for row in rows:
        tokens = np.asarray(row, dtype=np.int64).astype(np.uint64)
        size = min(NGRAM, len(tokens))
        hashes = np.full(len(tokens) - size + 1, size, dtype=np.uint64)
        for place in range(size):
            hashes = (hashes ^ tokens[place : place + len(hashes)]) * _MULTIPLIER
            hashes ^= hashes >> np.uint64(29)
        yield set(hashes.tolist())


def _flattened(rows: Rows) -> tuple[IntArray, IntArray]:
    """The tokens of all rows one after another, and the length of each row."""
    tokens = rows.tokens
    if isinstance(tokens, np.ndarray) and tokens.ndim == 2:
        lengths = np.full(len(tokens), tokens.shape[1], dtype=np.int64)
        return tokens.reshape(-1).astype(np.int64, copy=False), lengths
    lengths = np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens))
    if not len(lengths):
        return np.zeros(0, dtype=np.int64), lengths
    return np.concatenate(list(tokens)).astype(np.int64, copy=False), lengths
