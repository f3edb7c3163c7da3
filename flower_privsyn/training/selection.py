"""Choosing public text: scores from releases, and the best rows.

Rows of public text are scored from releases alone, or by a model that was trained on them, so
choosing costs nothing; by a model that was trained on private text without noise there is no
guarantee whatever.

Paper:
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024), Algorithm 1, distribution matching: the rows with the largest average
        log-probability of a token by the private model plus that by the public one, a share q of
        the corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import LARGEST_WHOLE
from flower_privsyn.data.public_rows import PublicRows, TokenRows
from flower_privsyn.files import replacing
from flower_privsyn.models.pretrained import load_pretrained
from flower_privsyn.progress import Progress
from flower_privsyn.queries.joint_sketch import find_bigrams
from flower_privsyn.training.storage import digest_of, weight_files
from flower_privsyn.training.tokens import first_token, scored, text_window

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: How much each of n rows is wanted: (n,), the higher the more; not finite for a row
#: that cannot be chosen.
Scorer = Callable[[TokenRows], Float64Array]

#: Tokens of an n-gram; a shorter row is one n-gram.
NGRAM: Final = 8

#: Rows that a model scores together.
BLOCK_ROWS = 1024

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


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

    def __call__(self, rows: TokenRows) -> Float64Array:
        """Score rows; one without tokens has no score (minus infinity)."""
        flat, starts, filled = rows.tokens, rows.starts, rows.lengths > 0
        scores = np.full(len(rows), -np.inf)
        if not len(flat):
            return scores
        values = self.tokens[flat]
        if self.bigram_keys is not None and self.bigrams is not None:
            second = np.arange(1, len(flat))
            second = np.delete(second, starts[(starts > 0) & (starts < len(flat))] - 1)
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
        scores[filled] = np.add.reduceat(values, starts[filled]) / rows.lengths[filled]
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """The rows that were chosen, in the order in which they were.

    Attributes:
        indices: (k,) their places.
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


def select(
    rows: Sequence[IntArray] | PublicRows,
    scores: Float64Array,
    *,
    count: int | None = None,
    share: float = 1.0,
    most_overlap: float = 1.0,
) -> Selection:
    """Choose rows.

    In the order of their scores, rows are chosen until there are enough, or the next one would go
    beyond the share; passed over is who has no finite score, or overlaps too much with who was
    chosen before. Equal scores go by their place.

    Rows differ in length, and training costs tokens: of the rows of Wang et al., which are all as
    long, the same share of rows is the same share of tokens.

    Args:
        rows: public rows.
        scores: (n,) how much each is wanted.
        count: how many are chosen; fewer where there are not as many to choose from. None for no
            number.
        share: in (0, 1], of the tokens of all rows, which those that are chosen have at most.
        most_overlap: in (0, 1]; a row is left out of whose n-grams more than this share are in rows
            chosen before it. 1 leaves nothing out, and without a count who equals one.
    """
    left = int(share * sum(len(rows[index]) for index in range(len(rows)))) if share < 1 else None
    chosen: list[int] = []
    tokens: list[IntArray] = []
    known: set[int] = set()
    overlapping = 0
    for index in map(int, np.argsort(-scores, kind="stable")):
        if len(chosen) == count or not np.isfinite(scores[index]):
            break
        row = rows[index]
        if most_overlap < 1:
            own = _ngrams(row)
        else:
            own = {hash(row.tobytes())} if count is None else set()
        if own and len(known & own) > (most_overlap * len(own) if most_overlap < 1 else 0):
            overlapping += 1
            continue
        if left is not None and (left := left - len(row)) < 0:
            break
        known |= own
        chosen.append(index)
        tokens.append(row)
    return Selection(
        indices=np.array(chosen, dtype=np.int64),
        scores=scores[chosen],
        tokens=tokens,
        num_rows=len(rows),
        overlapping=overlapping,
    )


def long_rows(scorer: Scorer, least: int) -> Scorer:
    """The same scores, and minus infinity for rows of fewer tokens than `least`."""

    def score(rows: TokenRows) -> Float64Array:
        return np.where(rows.lengths < least, -np.inf, scorer(rows))

    return score


def choose(
    public: PublicRows,
    scorer: Scorer,
    *,
    share: float,
    least: int,
    most_overlap: float = 1.0,
    progress: Progress,
) -> Selection:
    """Score public text and choose the rows of it that are wanted most.

    Args:
        public: the rows.
        scorer: how much each is wanted.
        share: in (0, 1], of the rows, which is chosen.
        least: rows that are chosen at least, where there are so many.
        most_overlap: as `select` has it; nothing is left out where all are chosen.
        progress: where the step is shown.
    """
    scores = []
    with progress.stage("Choose public text", len(public)) as stage:
        for chunk in public.chunks():
            scores.append(scorer(chunk))
            stage.update(len(chunk))
        return select(
            public,
            np.concatenate(scores),
            count=max(round(share * len(public)), least),
            most_overlap=most_overlap if share < 1 else 1.0,
        )


def _ngrams(row: IntArray) -> set[int]:
    """The distinct n-grams of a row, as hashes; of a shorter row the one that it is."""
    tokens = np.asarray(row, dtype=np.int64).astype(np.uint64)
    size = min(NGRAM, len(tokens))
    hashes = np.full(len(tokens) - size + 1, size, dtype=np.uint64)
    for place in range(size):
        hashes = (hashes ^ tokens[place : place + len(hashes)]) * _MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return set(hashes.tolist())


def likelihoods(
    rows: PublicRows,
    model: str | Path,
    *,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Float64Array:
    """How likely a causal language model finds rows: an average over their tokens.

    A row is what follows the beginning token, without an end token unless it has one. A row of
    more tokens than the model's context holds is read in pieces, each after a beginning token,
    as training splits it. Numbers are kept for these rows and this model. Which rows are read
    together depends on the rows alone, so that it changes no bit.

    Args:
        rows: the n rows of public text.
        model: a bundled short name, a folder or a hub name; its tokens are those of the rows.
        folder: for the numbers; made if needed. Others there are left as they are.
        progress: called with how many rows have been read, and with n.

    Returns:
        (n,) log-probabilities in nats, mapped from the disk.

    Raises:
        ModelError: The model cannot be loaded.
    """
    made_of = {
        "model": weight_files(model),
        "rows": digest_of(rows[index].tobytes() for index in range(len(rows))),
    }
    digest = hashlib.blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16)
    file = folder / f"scores-{digest.hexdigest()}.npy"
    if not file.exists():
        network, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device=None)
        begin, window, found = first_token(tokenizer), text_window(network, LARGEST_WHOLE), []
        for start in range(0, len(rows), BLOCK_ROWS):
            block = range(start, min(start + BLOCK_ROWS, len(rows)))
            read = [rows[index].tolist() for index in block]
            nats = scored(network, read, begin=begin, window=window)[0]
            found.append(-nats / [max(1, len(row)) for row in read])
            if progress is not None:
                progress(block.stop, len(rows))
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(file) as opened:
            np.save(opened, np.concatenate(found))
    scores: Float64Array = np.load(file, mmap_mode="r")
    return scores
