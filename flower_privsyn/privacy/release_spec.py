"""One noisy sum as messages, ledgers and accountant have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from flower_privsyn.checks import check_whole
from flower_privsyn.privacy.accounting import Release, accounted
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.mechanisms import GaussianMechanism, mechanism_from_dict
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.sampling import FullParticipation, Sampling

NO_STREAMS: Mapping[str, Correlation] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class ReleaseSpec:
    """What a round is to release.

    Args:
        round: The round, at least 0.
        query: The name of the query.
        mechanism: The noise. Its ``l2_sensitivity`` is the norm bound of one user, on all nodes
            together, whatever the relation: the accountant doubles it under replace-one. Of
            correlated noise the multiplier is that of the innovations, the same in all rounds.
        sampling: How the cohort is drawn.
        relation: Which collections of users are neighbours.
        correlation: For correlated noise, the rounds that this one belongs to.
        max_nodes_per_user: On how many nodes one user may be, k >= 1: that norm bound is k times
            the clip norm.

    Raises:
        ConfigError: A value is out of range.
    """

    round: int
    query: str
    mechanism: GaussianMechanism
    sampling: Sampling
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    correlation: Correlation | None = None
    max_nodes_per_user: int = 1

    def __post_init__(self) -> None:
        check_whole("round", self.round, ge=0)
        check_whole("max_nodes_per_user", self.max_nodes_per_user, ge=1)

    @property
    def release(self) -> Release:
        """The release as the accountants see it.

        Correlated rounds are one mechanism, which no chance of being drawn into one of them makes
        any cheaper.
        """
        multiplier, sampling = self.mechanism.noise_multiplier, self.sampling
        if self.correlation is not None:
            multiplier = self.correlation.noise_multiplier(multiplier)
            sampling = FullParticipation(sampling.population)
        return Release(
            noise_multiplier=accounted(multiplier),
            sampling=sampling,
            relation=self.relation,
            max_nodes_per_user=self.max_nodes_per_user,
        )

    def same_noise_as(self, first: ReleaseSpec) -> bool:
        """Whether a round of correlated noise is what the first of its rounds was charged as.

        The clip norm is the unit of the noise, and may differ; so may whose turn it is, and users
        who come or go change nothing for the others.
        """
        one, other = (
            (
                spec.correlation,
                spec.mechanism.noise_multiplier,
                {**spec.sampling.to_dict(), "population": None, "round_number": None},
                spec.max_nodes_per_user,
            )
            for spec in (self, first)
        )
        return one == other

    def to_dict(self, *, known: Mapping[str, Correlation] = NO_STREAMS) -> dict[str, Any]:
        """A JSON-able description that `from_dict` reads back.

        Args:
            known: Correlations that the reader has, by the names of their streams, of which the
                name alone is written. A name proves nothing: another one may be given to it.
        """
        description = {
            "round": self.round,
            "query": self.query,
            **self.mechanism.to_dict(),
            "relation": self.relation.value,
            "sampling": self.sampling.to_dict(),
            "max_nodes_per_user": self.max_nodes_per_user,
        }
        if self.correlation is not None:
            description["stream"] = self.correlation.stream
            if known.get(self.correlation.stream) != self.correlation:
                description["correlation"] = self.correlation.to_dict()
        return description

    @staticmethod
    def from_dict(
        description: Mapping[str, Any], *, known: Mapping[str, Correlation] = NO_STREAMS
    ) -> ReleaseSpec:
        """Rebuild it from `to_dict`; other keys are left alone.

        Raises:
            KeyError, TypeError, ValueError: A value is missing or out of range.
        """
        correlation = None
        if "correlation" in description:
            correlation = Correlation.from_dict(description["correlation"])
        elif "stream" in description:
            correlation = known[description["stream"]]
        return ReleaseSpec(
            round=description["round"],
            query=str(description["query"]),
            mechanism=mechanism_from_dict(description),
            sampling=Sampling.from_dict(description["sampling"]),
            relation=NeighboringRelation(description["relation"]),
            correlation=correlation,
            max_nodes_per_user=description["max_nodes_per_user"],
        )
