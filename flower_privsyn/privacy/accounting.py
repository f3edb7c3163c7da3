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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from flower_privsyn.checks import check_number, check_whole
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
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"sampling must be one of this package's, got {self.sampling!r}.")
        if not isinstance(self.relation, NeighboringRelation):
            raise ConfigError(f"relation must be a NeighboringRelation, got {self.relation!r}.")
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


class Accountant(ABC):
    """Turns releases into epsilon at a delta.

    Formal guarantee:
        Unit: one user. The union of all releases is (epsilon, delta)-differentially private under
        the relation of the releases, for an observer who does not know the cohorts; an upper bound,
        never an estimate from below. All releases of one composition must state the same relation.
    """

    name: ClassVar[str]

    def epsilon(self, releases: Releases, *, delta: float) -> float:
        """Return the epsilon of all releases together.

        Args:
            releases: The releases in any order, or each with its count of at least 0.
            delta: Between 0 and 1, exclusive.

        Returns:
            At least 0; 0 without any release; infinity when one of them adds no noise.

        Raises:
            ConfigError: A value is out of range, the relations differ, or this accountant has no
                bound for a release.
        """
        delta = check_number("delta", delta, gt=0, lt=1)
        costs = _grouped(releases)
        if not costs:
            return 0.0
        if any(multiplier == 0.0 for (_, multiplier, *_), _ in costs):
            return math.inf
        amplified = self._epsilon(costs, delta)
        # Nobody learns more without the cohorts than with them. Matters for large fixed-size
        # cohorts, where the doubled sensitivity outweighs the sampling.
        return min(amplified, self._epsilon(_grouped(_with_known_cohorts(releases)), delta))

    @abstractmethod
    def _epsilon(self, costs: Costs, delta: float) -> float: ...


class PLDAccountant(Accountant):
    """Composes privacy loss distributions; the tightest bound of this package and the default.

    Unsampled releases use the exact Gaussian closed form. Sampled ones are discretised at 1e-4
    with pessimistic rounding, as ``dp_accounting`` does by default; where epsilon exceeds 20 or the
    noise multiplier is below 0.14, the interval grows with the losses, to bound the memory.

    Fixed-size cohorts: given the other members, the sum is that of a target drawn with
    probability n/N over a stand-in drawn otherwise, both of norm at most C. Relative to the
    stand-in the target's two versions lie within 2 C, so the pair of mixtures is dominated by the
    Poisson-sampled pair (+2 C, -2 C) at rate n/N: replace-one at half the noise multiplier. This
    is ``dp_accounting``'s truncated Poisson event with sampling probability 1.

    References:
        Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", theorem
        8. Doroshenko et al. 2022, "Connect the Dots", algorithm 1. Lebeda et al. 2024, "Avoiding
        Pitfalls for Privacy Accounting of Subsampled Mechanisms under Composition".
    """

    name = "pld"

    def _epsilon(self, costs: Costs, delta: float) -> float:
        return loss_distributions.epsilon(costs, delta)


class _RoughPLDAccountant(PLDAccountant):
    def _epsilon(self, costs: Costs, delta: float) -> float:
        return loss_distributions.epsilon(costs, delta, coarser=10.0)


class RDPAccountant(Accountant):
    """Composes Renyi divergences; what the published noise multipliers were computed with.

    Uses the default orders of ``dp_accounting``. For Poisson sampling the values at fractional
    orders are checked against those at whole ones, and replaced by a bound where they fail: the
    series behind them breaks down for large noise, in ``dp_accounting`` towards epsilons that are
    too large and in other libraries towards negative ones.

    Fixed-size cohorts use the bound for sampling without replacement under replace-one at half
    the noise multiplier. ``dp_accounting`` does not double the sensitivity under that relation by
    itself. Zero-out is the special case in which the replaced value is zero.

    References:
        Mironov 2017, "Renyi Differential Privacy". Mironov, Talwar and Zhang 2019, "Renyi
        Differential Privacy of the Sampled Gaussian Mechanism". Wang, Balle and Kasiviswanathan
        2019, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant", theorem
        27. Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy",
        proposition 12, for the conversion.
    """

    name = "rdp"

    def _epsilon(self, costs: Costs, delta: float) -> float:
        return renyi.epsilon(costs, delta)


def accountant(name: str) -> Accountant:
    """Return the accountant of that name.

    Args:
        name: "pld" (the default everywhere) or "rdp".

    Raises:
        ConfigError: The name is neither.
    """
    if name == PLDAccountant.name:
        return PLDAccountant()
    if name == RDPAccountant.name:
        return RDPAccountant()
    raise ConfigError(f'accountant must be "pld" or "rdp", got {name!r}.')


def supports(
    sampling: Sampling,
    relation: NeighboringRelation,
    *,
    accountant: str,
    max_nodes_per_user: int = 1,
) -> bool:
    """Say whether an accountant has a bound for a sampling under a relation.

    Args:
        sampling: How the cohort is drawn.
        relation: Which collections of users are neighbours.
        accountant: "pld" or "rdp".
        max_nodes_per_user: On how many nodes one user may be, at least 1.

    Returns:
        False with "rdp" for Poisson sampling of users on one node under replace-one; else True.

    Raises:
        ConfigError: The name is neither, or the sampling has no meaning under the relation.
    """
    chosen = _accountant(accountant)
    release = Release(
        noise_multiplier=1.0,
        sampling=sampling,
        relation=relation,
        max_nodes_per_user=max_nodes_per_user,
    )
    return not (isinstance(chosen, RDPAccountant) and _cost(release)[0] == "poisson-replace")


def release_epsilon(releases: Releases, *, delta: float, accountant: str = "pld") -> float:
    """Return the epsilon against somebody who does not know the cohorts.

    Args:
        releases: As for `Accountant.epsilon`.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".

    Raises:
        ConfigError: As for `Accountant.epsilon`.
    """
    return _accountant(accountant).epsilon(releases, delta=delta)


def known_cohorts_epsilon(releases: Releases, *, delta: float, accountant: str = "pld") -> float:
    """Return the epsilon of a user in every cohort against somebody who knows the cohorts.

    Args:
        releases: As for `Accountant.epsilon`. Where the observer sees less noise than a release
            carries, state the smaller noise multiplier.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".

    Raises:
        ConfigError: As for `Accountant.epsilon`.
    """
    return _accountant(accountant).epsilon(_with_known_cohorts(releases), delta=delta)


def by_participations(
    release: Release,
    *,
    delta: float,
    accountant: str = "pld",
    participations: Iterable[int] = (1, 2, 3),
) -> dict[int, float]:
    """Return the epsilon of known cohorts by the number of rounds a user took part in.

    Args:
        release: What one round releases.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".
        participations: Numbers of rounds, each at least 1.

    Returns:
        Epsilon for each number of rounds, in the order given.

    Raises:
        ConfigError: As for `Accountant.epsilon`.
    """
    known = _with_known_cohort(release)
    chosen = _accountant(accountant)
    return {
        rounds: chosen.epsilon({known: check_whole("participations", rounds, ge=1)}, delta=delta)
        for rounds in participations
    }


def rough_epsilon(releases: Releases, *, delta: float, accountant: str = "pld") -> float:
    """Return epsilon at a coarse discretisation: still an upper bound, and ten times faster.

    For searches that ask the accountant itself about their result.

    Args:
        releases: As for `Accountant.epsilon`.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp"; the same as `release_epsilon` for "rdp".

    Raises:
        ConfigError: As for `Accountant.epsilon`.
    """
    chosen = _accountant(accountant)
    if isinstance(chosen, PLDAccountant):
        chosen = _RoughPLDAccountant()
    return chosen.epsilon(releases, delta=delta)


# Some functions take the name of the accountant as a keyword called `accountant`.
_accountant = accountant


def _with_known_cohort(release: Release) -> Release:
    return replace(release, sampling=FullParticipation(release.sampling.population))


def _with_known_cohorts(releases: Releases) -> Counter[Release]:
    known = Counter[Release]()
    for release, count in _counted(releases):
        known[_with_known_cohort(release)] += count
    return known


def _counted(releases: Releases) -> Iterator[tuple[Release, int]]:
    if isinstance(releases, Mapping):
        for release, count in releases.items():
            yield release, check_whole("the count of a release", count, ge=0)
    else:
        for release in releases:
            yield release, 1


def _grouped(releases: Releases) -> Costs:
    """Return equal costs with their counts, in an order that does not depend on the input's."""
    costs = Counter[Cost]()
    relations = set()
    for release, count in _counted(releases):
        if count:
            costs[_cost(release)] += count
            relations.add(release.relation.value)
    if len(relations) > 1:
        raise ConfigError(
            "All releases of one composition must state the same relation, got "
            f"{' and '.join(sorted(relations))}."
        )
    return tuple(sorted(costs.items()))


def _cost(release: Release) -> Cost:
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
