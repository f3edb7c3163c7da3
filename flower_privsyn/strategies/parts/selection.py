"""Which candidates survive a release, and how often.

Papers:
    Hou et al.: "PrE-Text" (ICML 2024), Algorithm 1, lines 7 and 8: drawn by their votes.
    Xie et al.: "Differentially Private Synthetic Data via Foundation Model APIs 2: Text" (Aug-PE,
    ICML 2024): the best ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

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


class Selection(Protocol):
    """A rule from released votes to survivors: post-processing, with public randomness."""

    def counts(
        self, votes: Votes, *, keep: int, noise_std: float, chooser: np.random.Generator
    ) -> Counts | None:
        """How often each candidate survives.

        Args:
            votes: (m,) as released.
            keep: how many survive, counted as often as they do; 1 <= keep.
            noise_std: standard deviation of the noise in each vote.
            chooser: public randomness.

        Returns:
            (m,) that sum to `keep`; None where the votes say nothing.
        """


@dataclass(frozen=True, kw_only=True)
class Resample:
    """Candidates drawn with replacement, in proportion to their votes above a threshold.

    Attributes:
        threshold: H.
        unit: what H is counted in.
    """

    threshold: float
    unit: Literal["noise-std", "votes"]

    def counts(
        self, votes: Votes, *, keep: int, noise_std: float, chooser: np.random.Generator
    ) -> Counts | None:
        """See `Selection`: None where no candidate stands above the threshold."""
        unit = noise_std if self.unit == "noise-std" else 1.0
        above = np.maximum(votes - self.threshold * unit, 0.0)
        total = float(above.sum())
        if not total > 0.0:
            return None
        drawn = chooser.choice(len(votes), size=keep, replace=True, p=above / total)
        return np.bincount(drawn, minlength=len(votes))


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The candidates with most votes, each once; of equal ones the first."""

    def counts(
        self,
        votes: Votes,
        *,
        keep: int,
        noise_std: float,  # noqa: ARG002 - an order has no unit
        chooser: np.random.Generator,  # noqa: ARG002 - nothing is drawn
    ) -> Counts | None:
        """See `Selection`; there may be no more survivors than candidates."""
        if keep > len(votes):
            raise ValueError(f"{keep} of {len(votes)} candidates cannot survive once each")
        counts = np.zeros(len(votes), dtype=np.int64)
        counts[np.argsort(-votes, kind="stable")[:keep]] = 1
        return counts


class SelectsText(Protocol):
    """The settings that are looked at."""

    @property
    def selection(self) -> Literal["resample", "rank"]:
        """Who survives."""

    @property
    def threshold(self) -> float:
        """H."""

    @property
    def threshold_unit(self) -> Literal["noise-std", "votes"]:
        """What H is counted in."""


def selection_of(config: SelectsText) -> Selection:
    """The rule that settings name."""
    if config.selection == "rank":
        return Rank()
    return Resample(threshold=config.threshold, unit=config.threshold_unit)
