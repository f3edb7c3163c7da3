"""What a line of the ledger says of a release that was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flower_privsyn.checks import check_whole
from flower_privsyn.privacy import accounting
from flower_privsyn.privacy.accounting import Release
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.mechanisms import GaussianMechanism, mechanism_from_dict
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import FullParticipation, Sampling


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """What a started line says about the release to come."""

    round: int
    query: str
    mechanism: GaussianMechanism
    relation: NeighboringRelation
    sampling: Sampling
    planned_users: int
    secure_randomness: bool
    correlation: Correlation | None = None
    max_nodes_per_user: int = 1

    def is_private(self, release: Release) -> bool:
        """Whether what was released of this carries noise, from a secure source."""
        return self.secure_randomness and release.noise_multiplier > 0.0

    def release(self) -> Release:
        """The release as the accountants see it."""
        multiplier = self.mechanism.noise_multiplier
        if self.correlation is not None:
            multiplier = self.correlation.noise_multiplier(multiplier)
        return self.with_multiplier(multiplier)

    def with_multiplier(self, multiplier: float) -> Release:
        """This release with another noise multiplier.

        Correlated rounds are one mechanism, which no chance of being drawn into one of them makes
        any cheaper.
        """
        correlated = self.correlation is not None
        return Release(
            noise_multiplier=accounting.accounted(multiplier),
            sampling=FullParticipation(self.sampling.population) if correlated else self.sampling,
            relation=self.relation,
            max_nodes_per_user=self.max_nodes_per_user,
        )

    def describe(self) -> dict[str, Any]:
        """The line's fields."""
        return {
            "round": self.round,
            "query": self.query,
            **self.mechanism.to_dict(),
            "relation": self.relation.value,
            "sampling": self.sampling.to_dict(),
            "max_nodes_per_user": self.max_nodes_per_user,
            "planned_users": self.planned_users,
            "secure_randomness": self.secure_randomness,
            **({} if self.correlation is None else {"stream": self.correlation.stream}),
        }

    @staticmethod
    def from_line(line: Mapping[str, Any], streams: Mapping[str, NoiseStream]) -> PlannedRelease:
        """Read a line, a correlation that stands in an earlier one from the streams so far."""
        correlation = None
        if "correlation" in line:
            correlation = Correlation.from_dict(line["correlation"])
        elif "stream" in line:
            correlation = streams[line["stream"]].first.correlation
        return PlannedRelease(
            round=check_whole("round", line["round"], ge=0),
            query=str(line["query"]),
            mechanism=mechanism_from_dict(line),
            relation=NeighboringRelation(line["relation"]),
            sampling=Sampling.from_dict(line["sampling"]),
            max_nodes_per_user=check_whole("max_nodes_per_user", line["max_nodes_per_user"], ge=1),
            planned_users=check_whole("planned_users", line["planned_users"], ge=1),
            secure_randomness=bool(line["secure_randomness"]),
            correlation=correlation,
        )


@dataclass(kw_only=True)
class NoiseStream:
    """Rounds whose noise is correlated: they cost once, all together.

    Attributes:
        first: the first round that was started.
        started: every round that was, discarded ones included.
        charged: the round whose charge covers all others; None before.
        released: the last round that was charged and not interrupted; None before.
    """

    first: PlannedRelease
    started: list[int] = field(default_factory=list)
    charged: int | None = None
    released: int | None = None
