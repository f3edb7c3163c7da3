"""Which candidates survive a release, and how often.

Papers:
    Hou et al.: "PrE-Text" (ICML 2024), Algorithm 1, lines 7 and 8: drawn by their votes.
    Xie et al.: "Differentially Private Synthetic Data via Foundation Model APIs 2: Text" (Aug-PE,
    ICML 2024): the best ones.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import NonNegativeFloat

Counts = npt.NDArray[np.int64]
Votes = npt.NDArray[np.float64]

SelectionName = Annotated[
    Literal["resample", "rank"],
    'who survives: "resample", candidates drawn with replacement in proportion to their votes '
    'above the threshold (PrE-Text); "rank", those with most votes, each once (Aug-PE).',
]
"""The setting `selection`."""

Threshold = Annotated[
    NonNegativeFloat, 'H, subtracted from the noisy votes before "resample" draws.'
]
"""The setting `threshold`."""

ThresholdUnit = Annotated[
    Literal["noise-std", "votes"],
    '"noise-std": H is `threshold` standard deviations of the noise; "votes": H is `threshold` '
    "votes, as in PrE-Text.",
]
"""The setting `threshold-unit`."""


def resampled(
    votes: Votes, *, keep: int, threshold: float, chooser: np.random.Generator
) -> Counts | None:
    """How often each candidate survives, drawn with replacement by its votes above a threshold.

    Post-processing, with public randomness.

    Args:
        votes: (m,) as released.
        keep: how many survive, counted as often as they do; >= 1.
        threshold: H, in votes.
        chooser: public randomness.

    Returns:
        (m,) that sum to `keep`; None where no candidate stands above the threshold.
    """
    above = np.maximum(votes - threshold, 0.0)
    total = float(above.sum())
    if not total > 0.0:
        return None
    drawn = chooser.choice(len(votes), size=keep, replace=True, p=above / total)
    return np.bincount(drawn, minlength=len(votes))


def ranked(votes: Votes, *, keep: int) -> Counts:
    """The candidates with most votes, each once; of equal ones the first.

    Args:
        votes: (m,) as released.
        keep: how many survive, from 1 to m.

    Returns:
        (m,) 1 for whoever survives.
    """
    if keep > len(votes):
        raise ValueError(f"{keep} of {len(votes)} candidates cannot survive once each")
    counts = np.zeros(len(votes), dtype=np.int64)
    counts[np.argsort(-votes, kind="stable")[:keep]] = 1
    return counts
