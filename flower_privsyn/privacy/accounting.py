"""From releases to epsilon: privacy loss distributions by default, Renyi to match the papers.

Two epsilons are computed from the same releases, because two observers differ:

- *release*: somebody who sees every noisy sum and does not know who took part in which round.
  Sampling amplifies the privacy of these.
- *known cohorts*: somebody who sees every noisy sum and knows who took part in which round.
  Sampling gives nothing against that; a user who takes part in k rounds spends k unsampled Gaussian
  releases. It is no bound on a server that receives sums before the noise is added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from flower_privsyn.checks import check_choice, check_number, check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import loss_distributions, renyi
from flower_privsyn.privacy.relation import NeighboringRelation
from flower_privsyn.privacy.renyi import Cost, Costs
from flower_privsyn.privacy.sampling import (
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
)

LEAST_MULTIPLIER = 1e-3
LARGEST_MULTIPLIER = 1e6
#: Largest number of nodes that settings may say one user is on.
MOST_NODES_PER_USER = 1000


@dataclass(frozen=True, kw_only=True)
class Release:
    """One noisy sum that left the private path, as the accountants see it.

    Args:
        noise_multiplier: Standard deviation of the noise over the norm bound of one user's
            contribution on all nodes together, at least 0; zero is not private and makes every
            epsilon infinite. Who may be on k nodes has k contributions, and k times the bound.
        sampling: How the cohort was drawn.
        relation: Which collections of users are neighbours.
        max_nodes_per_user: On how many nodes one user may be, k >= 1. Where users flip coins, one
            of k coins is likelier to fall than one alone: with k > 1 nothing is counted as hidden
            by them, and every user as taking part on all nodes.

    Raises:
        ConfigError: A value is out of range; fixed-size sampling meets add-remove: the size of
            the population is public there, so neighbours must have equal sizes; or k > 1 meets
            fixed-size sampling, for which there is no bound here.
    """

    noise_multiplier: float
    sampling: Sampling
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    max_nodes_per_user: int = 1

    def __post_init__(self) -> None:
        multiplier = check_number("noise_multiplier", self.noise_multiplier, ge=0)
        if multiplier and not LEAST_MULTIPLIER <= multiplier <= LARGEST_MULTIPLIER:
            # Beyond, epsilon is either meaningless or zero, and the libraries overflow.
            raise ConfigError(
                f"noise_multiplier must be 0 (no privacy) or between 0.001 and 1e6, got "
                f"{multiplier:g}."
            )
        object.__setattr__(self, "noise_multiplier", multiplier)
        if (
            isinstance(self.sampling, FixedSizeSampling)
            and self.relation is NeighboringRelation.ADD_REMOVE
        ):
            raise ConfigError(
                'relation must be "zero-out" or "replace-one" for fixed-size sampling, '
                'got "add-remove".'
            )
        nodes = check_whole(
            "max_nodes_per_user", self.max_nodes_per_user, ge=1, le=MOST_NODES_PER_USER
        )
        object.__setattr__(self, "max_nodes_per_user", nodes)
        if nodes > 1 and isinstance(self.sampling, FixedSizeSampling):
            raise ConfigError(
                "max_nodes_per_user must be 1 for fixed-size sampling, where somebody who is drawn "
                f"on several nodes is not accounted for, got {nodes}."
            )


def accounted(noise_multiplier: float) -> float:
    """A noise multiplier as a release has it: what is next to no noise counts as none."""
    return 0.0 if noise_multiplier < LEAST_MULTIPLIER else noise_multiplier


Releases: TypeAlias = Sequence[Release] | Mapping[Release, int]


#: By their names: privacy loss distributions, the tightest here and the default everywhere, and
#: Renyi divergences, which published noise multipliers were computed with.
ACCOUNTANTS: Mapping[str, Callable[[Costs, float], float]] = {
    "pld": loss_distributions.epsilon,
    "rdp": renyi.epsilon,
}


def release_epsilon(releases: Releases, *, delta: float, accountant: str = "pld") -> float:
    """Return the epsilon against somebody who does not know the cohorts.

    Formal guarantee:
        Unit: one user. The union of all releases is (epsilon, delta)-differentially private under
        the relation of the releases, for an observer who does not know the cohorts; an upper bound,
        never an estimate from below. All releases of one composition must state the same relation.

    Args:
        releases: The releases in any order, or each with its count of at least 0.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".

    Returns:
        At least 0; 0 without any release; infinity when one of them adds no noise.

    Raises:
        ConfigError: A value is out of range, the relations differ, or this accountant has no bound
            for a release.
    """
    check_choice("accountant", accountant, ACCOUNTANTS)
    delta = check_number("delta", delta, gt=0, lt=1)
    costs, bound = _grouped(releases), ACCOUNTANTS[accountant]
    if not costs:
        return 0.0
    if any(multiplier == 0.0 for (_, multiplier, *_), _ in costs):
        return math.inf
    # Nobody learns more without the cohorts than with them. Matters for large fixed-size
    # cohorts, where the doubled sensitivity outweighs the sampling.
    return min(bound(costs, delta), bound(_grouped(_with_known_cohorts(releases)), delta))


def known_cohorts_epsilon(releases: Releases, *, delta: float, accountant: str = "pld") -> float:
    """Return the epsilon of a user in every cohort against somebody who knows the cohorts.

    Args:
        releases: As for `release_epsilon`. Where the observer sees less noise than a release
            carries, state the smaller noise multiplier.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".

    Raises:
        ConfigError: As for `release_epsilon`.
    """
    return release_epsilon(_with_known_cohorts(releases), delta=delta, accountant=accountant)


def _with_known_cohorts(releases: Releases) -> Counter[Release]:
    known = Counter[Release]()
    for release, count in Counter(releases).items():
        everyone = FullParticipation(release.sampling.population)
        known[replace(release, sampling=everyone)] += count
    return known


def _grouped(releases: Releases) -> Costs:
    """Return equal costs with their counts, in an order that does not depend on the input's."""
    costs = Counter[Cost]()
    relations = set()
    for release, count in Counter(releases).items():
        if count:
            costs[cost(release)] += check_whole("the count of a release", count, ge=0)
            relations.add(release.relation.value)
    if len(relations) > 1:
        raise ConfigError(
            "All releases of one composition must state the same relation, got "
            f"{' and '.join(sorted(relations))}."
        )
    return tuple(sorted(costs.items()))


def cost(release: Release) -> Cost:
    """Return what a release costs, in the few kinds that accountants tell apart."""
    sampling, multiplier = release.sampling, release.noise_multiplier
    replaced = release.relation is NeighboringRelation.REPLACE_ONE
    # Every cohort is everyone, whatever the method; or whose turn it is, is public; or a user flips
    # a coin on each of several nodes: given the coins the sum moves by the norm bound at most.
    everyone = sampling.rate == 1.0 or sampling.takes_turns
    if everyone or (isinstance(sampling, PoissonSampling) and release.max_nodes_per_user > 1):
        return ("gaussian", multiplier / 2.0 if replaced else multiplier, 1.0)
    if isinstance(sampling, PoissonSampling):
        return ("poisson-replace" if replaced else "poisson", multiplier, sampling.rate)
    if isinstance(sampling, FixedSizeSampling):
        return ("fixed", multiplier / 2.0, sampling.rate)
    raise ConfigError(f"sampling {type(sampling).__name__} has no accounting.")
