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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from flower_privsyn.checks import (
    NonNegativeInt,
    OrZero,
    PositiveInt,
    Settings,
    check_choice,
    check_number,
    check_whole,
)
from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy.correlated_noise import Correlation
from flower_privsyn.privacy.mechanisms import GaussianMechanism, NeighboringRelation
from flower_privsyn.privacy.sampling import (
    CyclicSampling,
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
class Release(Settings):
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

    # Beyond, epsilon is either meaningless or zero, and the libraries overflow.
    noise_multiplier: Annotated[
        float, OrZero("no privacy"), Ge(LEAST_MULTIPLIER), Le(LARGEST_MULTIPLIER)
    ]
    sampling: Sampling
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    max_nodes_per_user: Annotated[int, Ge(1), Le(MOST_NODES_PER_USER)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            isinstance(self.sampling, FixedSizeSampling)
            and self.relation is NeighboringRelation.ADD_REMOVE
        ):
            raise ConfigError(
                'relation must be "zero-out" or "replace-one" for fixed-size sampling, '
                'got "add-remove".'
            )
        if self.max_nodes_per_user > 1 and isinstance(self.sampling, FixedSizeSampling):
            raise ConfigError(
                "max-nodes-per-user must be 1 for fixed-size sampling, where somebody who is drawn "
                f"on several nodes is not accounted for, got {self.max_nodes_per_user}."
            )


def accounted(noise_multiplier: float) -> float:
    """A noise multiplier as a release has it: next to no noise counts as none, more as the most."""
    return 0.0 if noise_multiplier < LEAST_MULTIPLIER else min(noise_multiplier, LARGEST_MULTIPLIER)


#: Of which somebody who does not know the cohorts is told the first, who knows them the second.
EPSILONS = ("epsilon_release", "epsilon_known_cohorts")

Releases: TypeAlias = Sequence[Release] | Mapping[Release, int]

# What a release costs, with everything that costs the same made equal: (kind, effective noise
# multiplier, rate). The kinds are "gaussian", "poisson", "poisson-replace" and "fixed".
Cost: TypeAlias = tuple[str, float, float]
Costs: TypeAlias = tuple[tuple[Cost, int], ...]


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


def both_epsilons(
    releases: Releases, *, delta: float, accountant: str = "pld"
) -> dict[str, float | None]:
    """Both epsilons by the names that the files of a run give them; None where it is infinite.

    `epsilon_known_cohorts` is that of a user in every cohort. Where the observer sees less noise
    than a release carries, state the smaller noise multiplier.

    Args:
        releases: As for `release_epsilon`.
        delta: Between 0 and 1, exclusive.
        accountant: "pld" or "rdp".

    Raises:
        ConfigError: As for `release_epsilon`.
    """
    found = [
        release_epsilon(seen, delta=delta, accountant=accountant)
        for seen in (releases, _with_known_cohorts(releases))
    ]
    finite = (value if math.isfinite(value) else None for value in found)
    return dict(zip(EPSILONS, finite, strict=True))


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
    everyone = sampling.rate == 1.0 or isinstance(sampling, CyclicSampling)
    if everyone or (isinstance(sampling, PoissonSampling) and release.max_nodes_per_user > 1):
        return ("gaussian", multiplier / 2.0 if replaced else multiplier, 1.0)
    if isinstance(sampling, PoissonSampling):
        return ("poisson-replace" if replaced else "poisson", multiplier, sampling.rate)
    if isinstance(sampling, FixedSizeSampling):
        return ("fixed", multiplier / 2.0, sampling.rate)
    raise ConfigError(f"sampling {type(sampling).__name__} has no accounting.")


NO_STREAMS: Mapping[str, Correlation] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class ReleaseSpec(Settings):
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

    round: NonNegativeInt
    query: str
    mechanism: GaussianMechanism
    sampling: Sampling
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT
    correlation: Correlation | None = None
    max_nodes_per_user: PositiveInt = 1

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
        if description["mechanism"] != GaussianMechanism.name:
            raise ConfigError(f'mechanism must be "gaussian", got {description["mechanism"]!r}.')
        correlation = None
        if "correlation" in description:
            correlation = Correlation.from_dict(description["correlation"])
        elif "stream" in description:
            correlation = known[description["stream"]]
        return ReleaseSpec(
            round=description["round"],
            query=str(description["query"]),
            mechanism=GaussianMechanism(
                noise_multiplier=description["noise_multiplier"],
                l2_sensitivity=description["l2_sensitivity"],
            ),
            sampling=Sampling.from_dict(description["sampling"]),
            relation=NeighboringRelation(description["relation"]),
            correlation=correlation,
            max_nodes_per_user=description["max_nodes_per_user"],
        )


@lru_cache(maxsize=4096)
def _pld_epsilon(costs: Costs, delta: float) -> float:
    """Return epsilon by privacy loss distributions: exact if all are Gaussian, else rounded up.

    Discretised ones are composed by Fourier transforms, whose rounding errors are absolute: they
    grow with the number of releases, and may be all there is of a probability of 1e-12. So they are
    counted against delta, and where they would take most of it Renyi divergences bound epsilon.

    Unsampled releases use the exact Gaussian closed form. Sampled ones are discretised at 1e-4 with
    pessimistic rounding, as ``dp_accounting`` does by default; where epsilon exceeds 20 or the
    noise multiplier is below 0.14, the interval grows with the losses, to bound the memory.

    Fixed-size cohorts: given the other members, the sum is that of a target drawn with probability
    n/N over a stand-in drawn otherwise, both of norm at most C. Relative to the stand-in the
    target's two versions lie within 2 C, so the pair of mixtures is dominated by the
    Poisson-sampled pair (+2 C, -2 C) at rate n/N: replace-one at half the noise multiplier. This is
    ``dp_accounting``'s truncated Poisson event with sampling probability 1.

    Args:
        costs: What they cost, at least one.
        delta: Between 0 and 1, exclusive.

    References:
        Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", theorem 8.
        Doroshenko et al. 2022, "Connect the Dots", algorithm 1. Lebeda et al. 2024, "Avoiding
        Pitfalls for Privacy Accounting of Subsampled Mechanisms under Composition".
    """
    if all(kind == "gaussian" for (kind, *_), _ in costs):
        import dp_accounting

        return quietly(dp_accounting.get_epsilon_gaussian, _gaussian_multiplier(costs), delta)
    # A composed probability may be below the true one by so much.
    left = delta - _ROUNDING * sum(count for (kind, *_), count in costs if kind != "gaussian")
    found = math.inf
    if left > 0.0:
        found = float(_pld(costs, _interval(costs, delta)).get_epsilon_for_delta(left))
    if left < delta / 2.0:
        # A bound that needs no Fourier transform; not all releases have one.
        with suppress(ConfigError):
            found = min(found, _rdp_epsilon(costs, delta))
    return found


def quietly(closed_form: Callable[[float, float], float], value: float, delta: float) -> float:
    """Ask the library for a closed form of the Gaussian mechanism, without its warnings.

    On its way it takes the logarithm of a difference of probabilities, which is 0 where they agree
    to the last digit: minus infinity is right there, and the warning tells nobody anything.
    """
    with np.errstate(divide="ignore"):
        return float(closed_form(value, delta))


#: By how much the rounding of one more release may move a tail of the composed distribution: 16
#: times the most that was seen against closed forms.
_ROUNDING = 2.0**-52


def _gaussian_multiplier(costs: Iterable[tuple[Cost, int]]) -> float:
    """Return the noise multiplier of the one Gaussian release equal to all of these."""
    precision = math.fsum(count / multiplier**2 for (_, multiplier, *_), count in costs)
    return 1.0 / math.sqrt(precision)


_FINEST_INTERVAL = 1e-4
_RELATIVE_INTERVAL = 5e-6


def _interval(costs: Costs, delta: float) -> float:
    """Return the discretisation: 1e-4 up to an epsilon of 20, then in proportion to it.

    It decides how tight epsilon is, and never whether it is an upper bound. As a function of
    e^epsilon, the delta of one release is convex. The library puts in its place the chords between
    the points of its grid (Doroshenko et al. 2022, "Connect the Dots"), which lie above it whatever
    the points are, and of which those of a subset of points lie above those of all. Composition
    keeps that order, and what is cut off the tails counts as infinite loss. So every interval
    gives at least the true epsilon, but for the rounding that `_ROUNDING` counts, and a multiple of
    it at least as much. (Beyond 745, where e^-epsilon is no number any longer, the library takes
    the first point of the grid above which there is less mass than delta: a bound as well, which a
    multiple may tighten.) The first look chooses the interval alone.
    """
    widest = together = 0.0
    for (kind, multiplier, *_), count in costs:
        shift = 2.0 if kind == "poisson-replace" else 1.0
        width = 10.0 * shift / multiplier + 0.5 * (shift / multiplier) ** 2
        widest = max(widest, width)
        together += width * math.sqrt(count)
    # The losses of one release spread that wide even where epsilon is small, because the rate or
    # the noise is: at most a million points of them are kept.
    finest = max(_FINEST_INTERVAL, 10.0 ** math.ceil(math.log10(widest * 1e-6) - 1e-9))
    # Those of all releases spread with the root of their number; a first look needs no more. The
    # library takes the exponential of the interval.
    interval = max(1e-2, finest * 10.0, min(together * 1e-5, 500.0))
    rough = float(_pld(costs, interval).get_epsilon_for_delta(delta))
    if not math.isfinite(rough):
        return interval
    wanted = max(finest, rough * _RELATIVE_INTERVAL)
    # Powers of ten, with room for the rounding of the logarithm.
    return min(interval, 10.0 ** math.ceil(math.log10(wanted) - 1e-9))


def _pld(costs: Costs, interval: float) -> Any:
    """Return the composed privacy loss distribution, pessimistic."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    composed: Any = None
    unsampled = [(cost, count) for cost, count in costs if cost[0] == "gaussian"]
    if unsampled:
        composed = pld.from_gaussian_mechanism(
            _gaussian_multiplier(unsampled), value_discretization_interval=interval
        )
    for cost, count in costs:
        if cost[0] == "gaussian":
            continue
        one = _single_pld(cost, interval).self_compose(count)
        composed = one if composed is None else composed.compose(one)
    return composed


@lru_cache(maxsize=32)
def _single_pld(cost: Cost, interval: float) -> Any:
    from dp_accounting import NeighboringRelation as Neighbors
    from dp_accounting.pld import privacy_loss_distribution as pld

    kind, multiplier, rate = cost
    return pld.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=Neighbors.REPLACE_SPECIAL
        if kind == "poisson"
        else Neighbors.REPLACE_ONE,
    )


@lru_cache(maxsize=4096)
def _rdp_epsilon(costs: Costs, delta: float) -> float:
    """Return epsilon by Renyi divergences, at the orders of ``dp_accounting``.

    For Poisson sampling the values at fractional orders are checked against those at whole ones,
    and replaced by a bound where they fail: the series behind them breaks down for large noise, in
    ``dp_accounting`` towards epsilons that are too large and in other libraries towards negative
    ones.

    Fixed-size cohorts use the bound for sampling without replacement under replace-one at half the
    noise multiplier. ``dp_accounting`` does not double the sensitivity under that relation by
    itself. Zero-out is the special case in which the replaced value is zero.

    Args:
        costs: What they cost, at least one.
        delta: Between 0 and 1, exclusive.

    Raises:
        ConfigError: One of them has no bound here.

    References:
        Mironov 2017, "Renyi Differential Privacy". Mironov, Talwar and Zhang 2019, "Renyi
        Differential Privacy of the Sampled Gaussian Mechanism". Wang, Balle and Kasiviswanathan
        2019, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant", theorem 27.
        Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy",
        proposition 12, for the conversion.
    """
    with _quiet():
        from dp_accounting.rdp import rdp_privacy_accountant as rdp

        orders, curve = _curve(costs)
        return float(rdp.compute_epsilon(orders, curve, delta)[0])


def _curve(costs: Costs) -> tuple[Any, Any]:
    """Return the Renyi orders and the composed divergence at each that is trustworthy."""
    orders: Any = None
    curve: Any = None
    for cost, count in costs:
        orders, single = _single_curve(cost)
        curve = count * single if curve is None else curve + count * single
    kept = np.isfinite(curve)
    if not kept.any():
        return np.array([2.0]), np.array([math.inf])
    return orders[kept], curve[kept]


@lru_cache(maxsize=256)
def _single_curve(cost: Cost) -> tuple[Any, Any]:
    import dp_accounting
    from dp_accounting import NeighboringRelation as Neighbors
    from dp_accounting.rdp import RdpAccountant

    kind, multiplier, rate = cost
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    neighbors, event = Neighbors.REPLACE_SPECIAL, gaussian
    if kind == "poisson":
        event = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    elif kind == "fixed":
        # Only the quotient of the two sizes matters; it is rebuilt from the exact fraction.
        size, population = rate.as_integer_ratio()
        neighbors = Neighbors.REPLACE_ONE
        event = dp_accounting.SampledWithoutReplacementDpEvent(population, size, gaussian)
    elif kind == "poisson-replace":
        raise ConfigError(
            'accountant must be "pld" for Poisson sampling under the relation "replace-one", '
            'got "rdp".'
        )
    backend = RdpAccountant(neighboring_relation=neighbors).compose(event)
    # The library offers no public way to add curves of different sampling methods.
    orders = np.asarray(backend._orders, dtype=np.float64)
    curve = np.asarray(backend._rdp, dtype=np.float64)
    if kind == "poisson":
        curve = _checked_between_integers(orders, curve)
    return orders, curve


def _checked_between_integers(
    orders: NDArray[np.float64], curve: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Replace what the library computes at fractional orders where it cannot be right.

    At whole orders the divergence of the sampled Gaussian is a finite sum of positive terms. In
    between it is a series of alternating ones, which loses all its digits when the noise is large
    or the rate moderate; the result is then anything, including too small. The logarithm of the
    moment, (order - 1) times the divergence, is convex and zero at 1. So between two whole orders
    it lies below their chord and above the chords next to it, continued. Where one value between
    two whole orders does not, all of them give way to the chord, which is always a bound.
    """
    moments = (orders - 1.0) * curve
    at = {1: 0.0}
    at.update({int(o): float(m) for o, m in zip(orders, moments, strict=True) if o == int(o)})
    checked = moments.copy()
    for low in range(1, int(orders[orders != np.rint(orders)].max()) + 1):
        inside = (orders > low) & (orders < low + 1)
        share = orders[inside] - low
        rise = at[low + 1] - at[low]
        chord = at[low] + share * rise
        floor = at[low + 1] - (1.0 - share) * (at[low + 2] - at[low + 1])
        if low > 1:
            floor = np.maximum(floor, at[low] + share * (at[low] - at[low - 1]))
        room = 1e-9 * max(rise, 0.0)
        # Written so that NaN counts as wrong.
        right = (moments[inside] >= floor - room) & (moments[inside] <= chord + room)
        checked[inside] = moments[inside] if right.all() else chord
    return checked / (orders - 1.0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's warnings about Renyi orders that did not converge.

    They are left out of the minimum, which costs nothing but the warning.
    """
    from absl import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


#: By their names: privacy loss distributions, the tightest here and the default everywhere, and
#: Renyi divergences, which published noise multipliers were computed with.
ACCOUNTANTS: Mapping[str, Callable[[Costs, float], float]] = {
    "pld": _pld_epsilon,
    "rdp": _rdp_epsilon,
}
