"""How varied a set of texts is by itself: no private text is needed.

Papers:
    Li et al., "A Diversity-Promoting Objective Function for Neural Conversation Models" (NAACL
    2016): distinct-n.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError

#: Words over which n-grams are counted; the share of distinct ones falls with the number of words.
NUM_WORDS = 20_000

_ORDERS = (1, 2, 3, 4)
_WORD = re.compile(r"\w+(?:'\w+)?|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """Variety of a set of texts.

    Attributes:
        texts: how many.
        distinct_texts: share of them that differ from all others, exactly.
        words: over which n-grams were counted, `NUM_WORDS` or all there are. Compare figures at
            equal numbers of words only.
        distinct: distinct-n, the share of n-grams that are distinct, for n = 1 to 4.
        self_similarity: mean cosine between two different texts of the set, in [-1, 1]; None
            without embeddings.
    """

    texts: int
    distinct_texts: float
    words: int
    distinct: dict[int, float]
    self_similarity: float | None


def diversity(
    texts: Sequence[str],
    *,
    embeddings: npt.NDArray[Any] | None = None,
    num_words: int = NUM_WORDS,
    seed: int = 0,
) -> Diversity:
    """Measure the variety of a set of texts.

    Args:
        texts: at least one.
        embeddings: (n, d) of the same texts, or None. Rows are scaled to unit length.
        num_words: n-grams are counted in texts drawn at random until they hold this many words,
            >= 1; n-grams do not cross texts.
        seed: of the draw.

    Raises:
        ConfigError: There is no text, or the embeddings are of other texts.
    """
    if not texts:
        raise ConfigError("diversity needs at least one text")
    check_whole("num_words", num_words, ge=1)
    sample: list[list[str]] = []
    words = 0
    for index in np.random.default_rng(seed).permutation(len(texts)):
        if words >= num_words:
            break
        row = _WORD.findall(texts[index].lower())[: num_words - words]
        sample.append(row)
        words += len(row)
    similarity = None
    if embeddings is not None:
        if embeddings.ndim != 2 or len(embeddings) != len(texts):
            raise ConfigError(
                f"embeddings must be ({len(texts)}, d), one row per text, got {embeddings.shape}"
            )
        if len(texts) > 1:
            similarity = _self_similarity(embeddings)
    return Diversity(
        texts=len(texts),
        distinct_texts=len(set(texts)) / len(texts),
        words=words,
        distinct={order: _distinct(sample, order) for order in _ORDERS},
        self_similarity=similarity,
    )


def _distinct(rows: Sequence[Sequence[str]], order: int) -> float:
    grams = [
        tuple(row[start : start + order]) for row in rows for start in range(len(row) - order + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0


def _self_similarity(embeddings: npt.NDArray[Any]) -> float:
    """Mean cosine of two different rows."""
    unit = embeddings.astype(np.float64)
    norms = np.linalg.norm(unit, axis=1, keepdims=True)
    unit /= np.where(norms > 0, norms, 1.0)
    n = len(unit)
    total = unit.sum(axis=0)
    # The sum over all ordered pairs, less every row with itself.
    return float((total @ total - (unit * unit).sum()) / (n * (n - 1)))
