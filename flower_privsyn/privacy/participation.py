"""Who takes part how often: what the sensitivity of correlated noise depends on.

With independent noise every round costs on its own. With correlated noise the rounds are one
mechanism, and what a user costs is decided by the set of rounds that the user takes part in. So the
pattern is a contract: `Participation` states it, `CyclicSampling` keeps it, and the ledger refuses
a round that would break it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flower_privsyn.checks import check_whole


@dataclass(frozen=True, kw_only=True)
class Participation:
    """A bound on the sets of rounds that one user may take part in.

    The rounds of one user are equal modulo ``min_separation``, as when users are dealt to groups
    that take turns. At 1 everybody may be in every round; at ``rounds`` everybody is in one.

    Args:
        rounds: Rounds of the whole mechanism, at least 1.
        min_separation: Smallest difference of two rounds of one user, at least 1.

    Raises:
        ConfigError: A value is out of range.

    References:
        Choquette-Choo et al. 2022, "Multi-Epoch Matrix Factorization Mechanisms for Private Machine
        Learning", section 2 (fixed order).
    """

    rounds: int
    min_separation: int = 1

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, ge=1)
        check_whole("min_separation", self.min_separation, ge=1)

    @property
    def most(self) -> int:
        """Rounds that one user can take part in."""
        return math.ceil(self.rounds / self.min_separation)

    def to_dict(self) -> dict[str, Any]:
        """The pattern as it stands in the ledger."""
        return {"rounds": self.rounds, "min_separation": self.min_separation}

    @staticmethod
    def from_dict(description: Mapping[str, Any]) -> Participation:
        """Rebuild a pattern from `to_dict`.

        Raises:
            ConfigError: A value is out of range.
        """
        return Participation(
            rounds=description["rounds"], min_separation=description["min_separation"]
        )
