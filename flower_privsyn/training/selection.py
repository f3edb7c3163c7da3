"""Choosing public text by what was released: scores, the best rows of a stream, resampling.

Rows of public text are scored from releases alone, so choosing costs nothing. A corpus may be of
any size: it is read in chunks, and the rows that may still be chosen are all that is kept.

Xie, Santurkar, Ma, Liang, "Data Selection for Language Models via Importance Resampling" (DSIR,
NeurIPS 2023) draws rows by importance weights and without replacement, by the Gumbel trick; here
the weights come from a private release. Wang et al., "Can Public Large Language Models Help Private
Cross-device Federated Learning?" (NAACL 2024) choose public text by a private model
(`flower_privsyn.training.distribution_matching`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import NonNegativeInt, PositiveFloat, PositiveInt, Settings, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.queries.bigrams import find_bigrams

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """A chunk of public text.

    Attributes:
        tokens: (n,) the tokens of each row, in the release's vocabulary; a matrix will do.
        embeddings: (n, d), for scores that look at them; else None.
        groups: (n,) integers, which source or cluster a row is of, for quotas; None: all of one.
    """

    tokens: Sequence[npt.NDArray[np.int64]] | npt.NDArray[Any]
    embeddings: npt.NDArray[np.float32] | None = None
    groups: IntArray | None = None

    def __post_init__(self) -> None:
        for name, array in (("embeddings", self.embeddings), ("groups", self.groups)):
            if array is not None and len(array) != len(self.tokens):
                raise ValueError(f"{len(self.tokens)} rows have {len(array)} {name}")

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

    A token b after a token a counts r(b) + w (min(r(ab) - r(a), max(r(b), r(ab))) - r(b)), r the
    log-ratios of a release: by tokens alone with w = 0, by a model of bigrams with w = 1, in which
    nothing gains by following what users do not write. A pair that the release says
    nothing of, and a row's first token, counts r(b). With weights, all that counts as b is
    multiplied by b's: frequent tokens vary from row to row by style more than by chance, and a
    plain sum trusts them too much (`surprisal_weights`).

    Attributes:
        tokens: (vocabulary,) log-ratios.
        bigram_keys: (K,) first * vocabulary + second, increasing; None for tokens alone.
        bigrams: (K,) their log-ratios.
        bigram_weight: w.
        weights: (vocabulary,) of what counts as a token; None for 1 each.
        average: divide by the tokens of the row; otherwise their sum, a row's log importance
            weight, as DSIR wants it.
    """

    tokens: Float64Array
    bigram_keys: IntArray | None = None
    bigrams: Float64Array | None = None
    bigram_weight: float = 1.0
    weights: Float64Array | None = None
    average: bool = True

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
            values[second] += self.bigram_weight * (after - alone)
        if self.weights is not None:
            values *= self.weights[flat]
        filled = lengths > 0
        starts = (np.cumsum(lengths) - lengths)[filled]
        sums = np.add.reduceat(values, starts)
        scores[filled] = sums / lengths[filled] if self.average else sums
        return scores


def surprisal_weights(counts: npt.NDArray[Any], *, power: float) -> Float64Array:
    """Weights that grow with how rare a token is in public text: powers of -log p, mean 1 by p.

    Args:
        counts: (vocabulary,) how often public text has each token, at least one of them > 0; half
            an occurrence is added to each.
        power: 0 for equal weights.

    Returns:
        (vocabulary,) > 0.
    """
    shares = np.asarray(counts, dtype=np.float64) + 0.5
    shares /= shares.sum()
    weights: Float64Array = (-np.log(shares)) ** power
    weights /= float(shares @ weights)
    return weights


@dataclass(frozen=True, kw_only=True, eq=False)
class CosineScorer:
    """Cosine between a row's embedding and where private text lies from public text.

    Attributes:
        released: (d,) the released mean embedding.
        public: (d,) the mean embedding of public text.
    """

    released: Float64Array
    public: Float64Array

    def __call__(self, rows: Rows) -> Float64Array:
        """Score rows; one whose embedding has no direction has no score (minus infinity)."""
        if rows.embeddings is None:
            raise ValueError("the cosine to a released mean needs the rows' embeddings")
        direction = np.asarray(self.released, dtype=np.float64) - self.public
        length = float(np.linalg.norm(direction))
        embeddings = rows.embeddings.astype(np.float64)
        norms = np.linalg.norm(embeddings, axis=1)
        products = embeddings @ (direction / length if length > 0 else direction)
        usable = np.isfinite(norms) & (norms > 0)
        return np.where(usable, products / np.where(usable, norms, 1.0), -np.inf)


@dataclass(frozen=True, kw_only=True, eq=False)
class CombinedScorer:
    """A weighted sum of scores, each counted in standard deviations over public rows.

    Attributes:
        scorers: the parts.
        weights: of each.
        scales: standard deviation of each over public rows, > 0.
    """

    scorers: tuple[Scorer, ...]
    weights: tuple[float, ...]
    scales: tuple[float, ...]

    @classmethod
    def of(
        cls, scorers: Sequence[Scorer], weights: Sequence[float], sample: Rows
    ) -> CombinedScorer:
        """Combine scores whose scales are measured.

        Args:
            scorers: the parts.
            weights: of each.
            sample: public rows, as those that will be scored.

        Raises:
            ValueError: a scorer gives the sample no two different scores.
        """
        scales = []
        for scorer in scorers:
            scores = scorer(sample)
            finite = scores[np.isfinite(scores)]
            scale = float(finite.std()) if len(finite) else 0.0
            if not scale > 0:
                raise ValueError(f"{type(scorer).__name__} gives all public rows the same score")
            scales.append(scale)
        return cls(scorers=tuple(scorers), weights=tuple(weights), scales=tuple(scales))

    def __call__(self, rows: Rows) -> Float64Array:
        """Score rows; one that a part gives no score has none (minus infinity)."""
        total = np.zeros(len(rows))
        unusable = np.zeros(len(rows), dtype=np.bool_)
        for scorer, weight, scale in zip(self.scorers, self.weights, self.scales, strict=True):
            scores = scorer(rows)
            finite = np.isfinite(scores)
            unusable |= ~finite
            total += weight / scale * np.where(finite, scores, 0.0)
        return np.where(unusable, -np.inf, total)


@dataclass(frozen=True, kw_only=True)
class SelectionRule(Settings):
    """Which rows are chosen, given their scores."""

    count: Annotated[PositiveInt, "how many; fewer where there are not as many to choose from."]
    method: Annotated[
        Literal["top", "resample"],
        '"top": the best; "resample": drawn without replacement, each next row with probability '
        "proportional to exp(`sharpness` x score) (DSIR).",
    ] = "top"
    sharpness: Annotated[
        PositiveFloat, 'what multiplies the scores in "resample": 1 for log importance weights.'
    ] = 1.0
    most_per_group: Annotated[
        int | None, Ge(0), "how many of one group at most; None for any number."
    ] = None
    quotas: Annotated[
        Mapping[int, int], "the same for single groups, in place of `most_per_group`."
    ] = field(default_factory=dict)
    most_overlap: Annotated[
        float,
        Gt(0),
        Le(1),
        "a row is left out of whose n-grams more than this share are in rows chosen before it; 1 "
        "leaves nothing out.",
    ] = 1.0
    ngram: Annotated[PositiveInt, "tokens of an n-gram; a shorter row is one n-gram."] = 8
    spare: Annotated[
        float,
        Ge(1),
        "how many times `count` (or a quota) rows are held ready for those that overlap; not "
        "looked at with `most_overlap` = 1.",
    ] = 2.0
    seed: Annotated[NonNegativeInt, "of the draws; public."] = 0

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        for group, quota in self.quotas.items():
            check_whole(f"the quota of group {group}", quota, ge=0)

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

    @property
    def limits_groups(self) -> bool:
        """Whether it matters which group a row is of."""
        return self.most_per_group is not None or bool(self.quotas)

    def limit(self, group: int) -> int:
        """How many rows of a group may be chosen."""
        most = self.quotas.get(group, self.most_per_group)
        return self.count if most is None else min(most, self.count)


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

    In the order of their scores, or of draws by them, rows are chosen until there are enough;
    passed over is who has no finite score, is of a group whose quota is full, or overlaps too much
    with who was chosen before. Equal ones go by their place in the stream. The result depends on
    the rows and the rule, not on how they are dealt to chunks. Rows that overlap are replaced by
    those held ready, so with very many of them fewer than `count` are chosen.

    Memory is that of one chunk and of twice the rows that may still be chosen: `count` of them, or
    the sum of all quotas, times `spare`.

    Args:
        chunks: public rows, in order.
        scorer: how much each is wanted.
        rule: which are chosen.
    """
    draws = np.random.default_rng(rule.seed)
    pool = _Pool(rule)
    for chunk in chunks:
        scores = np.asarray(scorer(chunk), dtype=np.float64)
        if scores.shape != (len(chunk),):
            raise ValueError(f"{len(chunk)} rows got scores of shape {scores.shape}")
        keys = scores
        if rule.method == "resample":
            # Gumbel variates, one per row in order: the k largest sums are a draw of k rows.
            noise = -np.log(-np.log(np.maximum(draws.random(len(chunk)), 2.0**-60)))
            keys = rule.sharpness * scores + noise
        pool.add(chunk, scores, keys)
    return pool.chosen()


class _Pool:
    """The rows that may still be chosen."""

    def __init__(self, rule: SelectionRule) -> None:
        self._rule = rule
        self._spare = rule.spare if rule.most_overlap < 1 else 1.0
        self._keys = np.zeros(0)
        self._scores = np.zeros(0)
        self._indices = np.zeros(0, dtype=np.int64)
        self._groups = np.zeros(0, dtype=np.int64)
        self._tokens: list[npt.NDArray[np.int64]] = []
        self._floors: dict[int, float] = {}
        self._seen = 0
        self._ready = 0

    def add(self, chunk: Rows, scores: Float64Array, keys: Float64Array) -> None:
        """Take in a chunk, and let go of what cannot be chosen any more."""
        groups = np.zeros(len(chunk), dtype=np.int64)
        if chunk.groups is not None and self._rule.limits_groups:
            groups = np.asarray(chunk.groups, dtype=np.int64)
        distinct, places = np.unique(groups, return_inverse=True)
        floors = np.array([self._floors.get(g, -np.inf) for g in distinct.tolist()])
        hopeful = np.isfinite(scores) & np.isfinite(keys)
        if len(chunk):
            hopeful &= keys > floors[places]
        rows = np.flatnonzero(hopeful)
        self._keys = np.concatenate((self._keys, keys[rows]))
        self._scores = np.concatenate((self._scores, scores[rows]))
        self._indices = np.concatenate((self._indices, rows + self._seen))
        self._groups = np.concatenate((self._groups, groups[rows]))
        # Copies: a view would keep its whole chunk in memory.
        self._tokens.extend(np.array(chunk.tokens[row], dtype=np.int64) for row in rows.tolist())
        self._seen += len(chunk)
        if len(self._keys) > 2 * self._ready:
            self._cut()
            self._ready = len(self._keys)

    def _keep(self, kept: IntArray) -> None:
        self._keys, self._scores = self._keys[kept], self._scores[kept]
        self._indices, self._groups = self._indices[kept], self._groups[kept]
        self._tokens = [self._tokens[row] for row in kept.tolist()]

    def _cut(self) -> None:
        """Keep the first ones of each group, as many as may be chosen and the spare ones.

        Of a group that has them all, later rows must have larger keys than its last one.
        """
        order = np.lexsort((self._indices, -self._keys, self._groups))
        groups, starts = np.unique(self._groups[order], return_index=True)
        sizes = np.diff(np.append(starts, len(order)))
        ranks = np.arange(len(order)) - np.repeat(starts, sizes)
        limits = [math.ceil(self._spare * self._rule.limit(group)) for group in groups.tolist()]
        for group, start, size, limit in zip(
            groups.tolist(), starts.tolist(), sizes.tolist(), limits, strict=True
        ):
            if size >= limit:
                last = self._keys[order[start + limit - 1]] if limit else np.inf
                self._floors[group] = float(last)
        self._keep(np.sort(order[ranks < np.repeat(np.array(limits, dtype=np.int64), sizes)]))

    def chosen(self) -> Selection:
        """The rows of the rule, best first."""
        rule = self._rule
        self._cut()
        self._keep(np.lexsort((self._indices, -self._keys)))
        ngrams = _ngrams(self._tokens, rule.ngram) if rule.most_overlap < 1 else None
        left = {group: rule.limit(group) for group in np.unique(self._groups).tolist()}
        known: set[int] = set()
        chosen: list[int] = []
        overlapping = 0
        for row, group in enumerate(self._groups.tolist()):
            if len(chosen) == rule.count:
                break
            if not left[group]:
                continue
            if ngrams is not None:
                own = ngrams[row]
                if len(known.intersection(own)) > rule.most_overlap * len(own):
                    overlapping += 1
                    continue
                known.update(own)
            left[group] -= 1
            chosen.append(row)
        return Selection(
            indices=self._indices[chosen],
            scores=self._scores[chosen],
            tokens=[self._tokens[row] for row in chosen],
            num_rows=self._seen,
            overlapping=overlapping,
        )


def _ngrams(rows: Sequence[npt.NDArray[np.int64]], length: int) -> list[set[int]]:
    """The distinct n-grams of each row, as hashes; of a shorter row the one that it is."""
    found = []
    for row in rows:
        tokens = np.asarray(row, dtype=np.int64).astype(np.uint64)
        size = min(length, len(tokens))
        hashes = np.full(len(tokens) - size + 1, size, dtype=np.uint64)
        for place in range(size):
            hashes = (hashes ^ tokens[place : place + len(hashes)]) * _MULTIPLIER
            hashes ^= hashes >> np.uint64(29)
        found.append(set(hashes.tolist()))
    return found


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
