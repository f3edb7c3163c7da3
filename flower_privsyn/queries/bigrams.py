"""Pairs of neighbouring tokens: which public text has most of, and where a pair is in that table.

Public text alone goes in: nothing here is about users.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

#: Tokens of public text whose pairs are sorted at a time: about 100 MiB.
_MOST_HELD: Final = 2**22


def frequent_bigrams(rows: Iterable[npt.NDArray[Any]], *, vocabulary: int, most: int) -> IntArray:
    """The bigrams that public text has most of.

    Args:
        rows: public texts, the tokens of each in `range(vocabulary)`.
        vocabulary: V.
        most: K, how many at most, >= 1.

    Returns:
        (K,) keys first * V + second, increasing. Of bigrams that are as frequent as one another
        those with the smaller keys are kept.
    """
    keys, counts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    waiting: list[npt.NDArray[Any]] = []
    held = 0

    def take_in() -> None:
        nonlocal keys, counts, held
        pairs = _bigrams(waiting, vocabulary)
        waiting.clear()
        held = 0
        # Sorting plain numbers is many times faster than finding the order of numbers: only the
        # distinct ones are put in order beside what is there.
        found, times = np.unique(pairs, return_counts=True)
        together, numbers = np.concatenate((keys, found)), np.concatenate((counts, times))
        order = np.argsort(together, kind="stable")
        together, numbers = together[order], numbers[order]
        first = np.flatnonzero(np.diff(together, prepend=-1))
        keys = together[first]
        counts = np.add.reduceat(numbers, first) if len(first) else numbers

    for row in rows:
        waiting.append(row)
        held += len(row)
        if held >= _MOST_HELD:
            take_in()
    take_in()
    chosen = np.lexsort((keys, -counts))[:most]
    return np.sort(keys[chosen])


def _bigrams(rows: Sequence[npt.NDArray[Any]], vocabulary: int) -> IntArray:
    """(n,) first * vocabulary + second of all pairs of tokens that stand in one row."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    tokens = np.concatenate([np.zeros(0, dtype=np.int64), *rows]).astype(np.int64, copy=False)
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        raise ValueError(f"tokens must be in range({vocabulary})")
    follows = np.ones(len(tokens), dtype=np.bool_)
    follows[(np.cumsum(lengths) - lengths)[lengths > 0]] = False
    second = np.flatnonzero(follows)
    return tokens[second - 1] * vocabulary + tokens[second]


def find_bigrams(keys: IntArray, pairs: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Look pairs of tokens up in a table.

    Args:
        keys: (K,) first * vocabulary + second, increasing, K >= 1.
        pairs: (n,) the same, of what is looked for.

    Returns:
        (n,) places in the table, and (n,) whether a pair is there.
    """
    places = np.searchsorted(keys, pairs)
    np.minimum(places, len(keys) - 1, out=places)
    return places, keys[places] == pairs
