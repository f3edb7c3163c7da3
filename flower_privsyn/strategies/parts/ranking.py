"""From scores to pairs: which response to a prompt is preferred to which other.

Papers:
    Hou, Wang, Zhu, Lazar, Fanti: "Private Federated Learning using Preference-Optimized Synthetic
    Data" (POPri, ICML 2025), Algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class RankedPairs:
    """Which candidate of a prompt is preferred to which other.

    Attributes:
        chosen: (p,) int64 indices of candidates.
        rejected: (p,) int64 indices of candidates of the same prompts.
        dropped: how many prompts gave no pair, by reason: "one-response" (chosen and rejected are
            the same candidate), "equal-text".
    """

    chosen: npt.NDArray[np.int64]
    rejected: npt.NDArray[np.int64]
    dropped: dict[str, int]


def rank_pairs(
    scores: npt.NDArray[np.float64],
    group: npt.NDArray[np.int64],
    texts: Sequence[str],
    *,
    rejected_rank: int,
) -> RankedPairs:
    """Choose one pair per prompt: rank 1 against rank `rejected_rank`.

    Equal scores are ranked by index, so a text that was written twice is two candidates with two
    ranks. A prompt with fewer candidates than `rejected_rank` rejects its last.

    Args:
        scores: (m,) float64, higher is better.
        group: (m,) int64, the prompt of each candidate, in any order.
        texts: (m) the candidates.
        rejected_rank: 1-based, >= 2.

    Raises:
        ValueError: the lengths differ, the rank is below 2 or a score is not finite.

    References:
        Hou et al. 2025 (POPri), Algorithm 1: the pairs of a round.
    """
    if not len(scores) == len(group) == len(texts):
        raise ValueError(
            f"{len(scores)} scores, {len(group)} groups and {len(texts)} texts must be one number"
        )
    if rejected_rank < 2:
        raise ValueError(f"rejected_rank must be at least 2, got {rejected_rank}")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    # Stable in both keys: prompts in ascending order, best first, ties by index.
    order = np.lexsort((-np.asarray(scores, dtype=np.float64), group))
    borders = np.flatnonzero(np.diff(group[order], prepend=group[order][:1] - 1))
    chosen: list[int] = []
    rejected: list[int] = []
    dropped: Counter[str] = Counter({"one-response": 0, "equal-text": 0})
    for start, stop in zip(borders, [*borders[1:], len(order)], strict=True):
        best = int(order[start])
        other = int(order[min(start + rejected_rank, stop) - 1])
        if best == other:
            dropped["one-response"] += 1
        elif texts[best] == texts[other]:
            dropped["equal-text"] += 1
        else:
            chosen.append(best)
            rejected.append(other)
    return RankedPairs(
        chosen=np.asarray(chosen, dtype=np.int64),
        rejected=np.asarray(rejected, dtype=np.int64),
        dropped=dict(dropped),
    )
