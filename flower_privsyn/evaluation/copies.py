"""How much private text stands in the synthetic text word for word, or nearly.

A generator under a small epsilon should copy no more from users it learned from than from users it
never met. So compare the rates against the private text with the rates against held-out text of the
same kind: quotations, boilerplate and chance produce the second as well.

Papers:
    Brown et al., "Language Models are Few-Shot Learners" (NeurIPS 2020), appendix C: 13-word
        windows.
    Lee et al., "Deduplicating Training Data Makes Language Models Better" (ACL 2022): near copies.
    Bayardo, Ma, Srikant, "Scaling Up All Pairs Similarity Search" (WWW 2007): the prefix filter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.distribution import library
from flower_privsyn.evaluation.result import NotPrivate

IntArray = npt.NDArray[np.int64]

_WORD = re.compile(r"\w+")

#: Synthetic texts that are compared at a time.
_ROWS = 128


@dataclass(frozen=True, kw_only=True)
class CopyRates(NotPrivate):
    """How many synthetic texts repeat private text.

    Texts are compared as words: Unicode compatibility forms and case are folded, and everything
    that is neither letter, digit nor underscore separates words. A text without words copies
    nothing.

    Attributes:
        exact: share of synthetic texts whose words are all the words of a private text, in order.
        windows: share that has a window of 13 words in common with a private text.
        near: share whose set of three-word shingles has a Jaccard similarity of at least one half
            with that of a private text; exact copies are among them.
        copied: indices of the synthetic texts that are exact, window or near copies, ascending.
        synthetic_texts: how many there are.
        private_texts: how many they were compared with.
    """

    exact: float
    windows: float
    near: float
    copied: tuple[int, ...]
    synthetic_texts: int
    private_texts: int

    @property
    def any(self) -> float:
        """Share of synthetic texts that are copies in one of these ways or several."""
        return len(self.copied) / self.synthetic_texts


def copy_rates(
    synthetic: Sequence[str],
    private: Sequence[str],
    *,
    window_words: int = 13,
    shingle_words: int = 3,
    threshold: float = 0.5,
) -> CopyRates:
    """Find exact copies, shared windows and near copies; nothing is approximated.

    Args:
        synthetic: at least one text.
        private: at least one text.
        window_words: >= 1; 13 as in the literature on contamination.
        shingle_words: >= 1. A text of fewer words is one shingle, the text itself.
        threshold: in (0, 1]. At 0.5 and three-word shingles a text of 45 words stays a near
            copy with up to four words, apart from one another, exchanged.

    Raises:
        ConfigError: A list is empty.
    """
    for name, texts in (("synthetic", synthetic), ("private", private)):
        if not texts:
            raise ConfigError(f"there must be at least one {name} text")
    vocabulary: dict[str, int] = {}
    rows = [_words(text, vocabulary) for text in synthetic]
    others = [_words(text, vocabulary) for text in private]
    exact = _exact(rows, others)
    windows = _windows(rows, others, window_words)
    near = exact | _near(rows, others, shingle_words, threshold)
    return CopyRates(
        exact=float(exact.mean()),
        windows=float(windows.mean()),
        near=float(near.mean()),
        copied=tuple(np.flatnonzero(exact | windows | near).tolist()),
        synthetic_texts=len(rows),
        private_texts=len(others),
    )


def _words(text: str, vocabulary: dict[str, int]) -> IntArray:
    folded = unicodedata.normalize("NFKC", text).casefold()
    numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in _WORD.findall(folded)]
    return np.array(numbers, dtype=np.int64)


def _exact(rows: Sequence[IntArray], others: Sequence[IntArray]) -> npt.NDArray[np.bool_]:
    known = {other.tobytes() for other in others if len(other)}
    return np.array([row.tobytes() in known for row in rows], dtype=np.bool_)


def _windows(
    rows: Sequence[IntArray], others: Sequence[IntArray], width: int
) -> npt.NDArray[np.bool_]:
    keys, owners = _grams([*rows, *others], width)
    synthetic = owners < len(rows)
    shared = np.isin(keys[synthetic], keys[~synthetic])
    found = np.zeros(len(rows), dtype=np.bool_)
    found[owners[synthetic][shared]] = True
    return found


def _grams(rows: Sequence[IntArray], width: int) -> tuple[IntArray, IntArray]:
    """All n-grams of all rows as numbers, equal for equal n-grams, and the row of each.

    Longer n-grams are built from shorter ones: (first part, last word) pairs are renumbered, so
    that two n-grams have the same number exactly when their words are the same.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    words = np.concatenate(rows) if lengths.sum() else np.empty(0, dtype=np.int64)
    owners = np.repeat(np.arange(len(rows)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(words))  # words from here on
    places = np.flatnonzero(left >= width)
    keys = words[places]
    base = int(words.max(initial=0)) + 1
    for step in range(1, width):
        # Below 2**63: there are at most as many distinct keys as places, and words as `base`.
        keys = np.unique(keys * base + words[places + step], return_inverse=True)[1]
    return keys, owners[places]


def _near(
    rows: Sequence[IntArray], others: Sequence[IntArray], width: int, threshold: float
) -> npt.NDArray[np.bool_]:
    """Rows whose shingles have at least the threshold's Jaccard similarity with another's."""
    sparse = library("scipy.sparse")
    found = np.zeros(len(rows), dtype=np.bool_)
    keys, owners = _shingles([*rows, *others], width)
    numbers, columns = np.unique(keys, return_inverse=True)
    sets = sparse.csr_array(
        (np.ones(len(keys), dtype=np.int64), (owners, columns)),
        shape=(len(rows) + len(others), len(numbers)),
    )
    sets.data[:] = 1  # a shingle that a text repeats was counted
    sizes = np.diff(sets.indptr)
    theirs = sets[len(rows) :].T.tocsr()
    for start in range(0, len(rows), _ROWS):
        common = (sets[start : min(start + _ROWS, len(rows))] @ theirs).tocoo()
        left, right = common.row + start, common.col + len(rows)
        union = sizes[left] + sizes[right] - common.data
        found[left[common.data >= threshold * union - 1e-9]] = True
    return found


def _shingles(rows: Sequence[IntArray], width: int) -> tuple[IntArray, IntArray]:
    """The shingles of all rows as numbers, and the row of each; a short row is one shingle."""
    keys, owners = _grams(rows, width)
    short = [index for index, row in enumerate(rows) if 0 < len(row) < width]
    numbers: dict[bytes, int] = {}
    after = int(keys.max(initial=-1)) + 1
    whole = [after + numbers.setdefault(rows[index].tobytes(), len(numbers)) for index in short]
    return np.append(keys, np.array(whole, dtype=np.int64)), np.append(owners, short).astype(int)
