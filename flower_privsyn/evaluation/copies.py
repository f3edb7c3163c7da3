"""How much private text stands in the synthetic text word for word, or nearly.

A generator under a small epsilon should copy no more from users it learned from than from users it
never met. So compare the rates against the private text with the rates against held-out text of the
same kind: quotations, boilerplate and chance produce the second as well.

Papers:
    Brown et al., "Language Models are Few-Shot Learners" (NeurIPS 2020), appendix C: 13-word
        windows.
    Lee et al., "Deduplicating Training Data Makes Language Models Better" (ACL 2022): near copies.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flower_privsyn.data.sentences import UNSPACED
from flower_privsyn.evaluation.result import NotPrivate

Words = tuple[str, ...]

#: Of scripts without blanks between words each letter is one.
_WORD = re.compile(rf"(?=\w)[{UNSPACED}]|[^\W{UNSPACED}]+")

#: Words of a window, as in the literature on contamination.
_WINDOW: Final = 13

#: Words of a shingle; a text of fewer is one shingle, the text itself.
_SHINGLE: Final = 3

#: Jaccard similarity of a near copy. A text of 45 words stays one with up to four of them, apart
#: from one another, exchanged.
_THRESHOLD: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class CopyRates(NotPrivate):
    """How many synthetic texts repeat private text.

    Texts are compared as words: Unicode compatibility forms and case are folded, and everything
    that is neither letter, digit nor underscore separates words; marks on letters are left out, as
    the vowels of Hindi. Each letter of Chinese, Japanese, Thai and the like is a word. A text
    without words copies nothing.

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


def copy_rates(synthetic: Sequence[str], private: Sequence[str]) -> CopyRates:
    """Find exact copies, shared windows and near copies; nothing is approximated.

    Args:
        synthetic: at least one text.
        private: what may be copied.
    """
    rows = [_words(text) for text in synthetic]
    shingles = [_shingles(row) for row in rows]
    whole = _places({row} - {()} for row in rows)
    windows = _places(_grams(row, _WINDOW) for row in rows)
    pieces = _places(shingles)
    exact, shared, near = set[int](), set[int](), set[int]()
    for text in private:
        words = _words(text)
        exact.update(whole.get(words, ()))
        for gram in _grams(words, _WINDOW):
            shared.update(windows.get(gram, ()))
        theirs = _shingles(words)
        common = Counter(row for piece in theirs for row in pieces.get(piece, ()))
        near.update(
            row
            for row, both in common.items()
            if both >= _THRESHOLD * (len(shingles[row]) + len(theirs) - both) - 1e-9
        )
    return CopyRates(
        exact=len(exact) / len(rows),
        windows=len(shared) / len(rows),
        near=len(near) / len(rows),
        copied=tuple(sorted(near | shared)),
        synthetic_texts=len(rows),
        private_texts=len(private),
    )


def _words(text: str) -> Words:
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = "".join(letter for letter in folded if unicodedata.category(letter)[0] != "M")
    return tuple(_WORD.findall(bare))


def _grams(row: Words, width: int) -> set[Words]:
    return {row[start : start + width] for start in range(len(row) - width + 1)}


def _shingles(row: Words) -> set[Words]:
    """Its n-grams; a shorter row is one shingle."""
    return _grams(row, min(_SHINGLE, len(row))) if row else set()


def _places(rows: Iterable[set[Words]]) -> Mapping[Words, list[int]]:
    """In which rows each of the pieces is."""
    found = defaultdict[Words, list[int]](list)
    for number, pieces in enumerate(rows):
        for piece in pieces:
            found[piece].append(number)
    return found
