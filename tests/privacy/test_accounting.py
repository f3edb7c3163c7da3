"""Epsilons: between independent lower and upper bounds, and as published findings say."""

from __future__ import annotations

import math
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    Release,
    Sampling,
    accounting,
    both_epsilons,
    release_epsilon,
)
from tests.support.lower_bounds import epsilon_lower_bound

DELTA = 3e-6
FULL = FullParticipation()
REPLACE = NeighboringRelation.REPLACE_ONE


def plan(
    noise_multiplier: float,
    sampling: Sampling = FULL,
    rounds: int = 20,
    relation: NeighboringRelation = NeighboringRelation.ZERO_OUT,
) -> dict[Release, int]:
    release = Release(noise_multiplier=noise_multiplier, sampling=sampling, relation=relation)
    return {release: rounds}


def epsilon(releases: dict[Release, int], name: str = "pld", delta: float = DELTA) -> float:
    return release_epsilon(releases, delta=delta, accountant=name)


# Full participation -----------------------------------------------------------------------------


@pytest.mark.parametrize("noise_multiplier", [3.35, 19.3, 60.0])
@pytest.mark.parametrize("rounds", [1, 11, 20])
def test_full_participation_is_the_exact_gaussian(noise_multiplier: float, rounds: int) -> None:
    exact = dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(rounds), DELTA)
    assert epsilon(plan(noise_multiplier, rounds=rounds)) == pytest.approx(exact, rel=1e-9)


def test_different_releases_add_up_as_one_gaussian() -> None:
    mixed = {**plan(3.0, rounds=2), **plan(5.0, rounds=1)}
    together = 1.0 / math.sqrt(2 / 9 + 1 / 25)
    assert epsilon(mixed) == pytest.approx(epsilon(plan(together, rounds=1)), rel=1e-9)


@pytest.mark.parametrize(
    ("rounds", "noise_multiplier", "delta"),
    [
        (100_000, 1054.1, 1e-12),
        (100_000, 1054.1, 1e-14),
        (10_000, 33.3, 1e-13),
        (10_000, 333.3, 1e-12),
        (10_000, 10.0, 1e-10),
        (100, 3.3, 1e-14),
    ],
)
def test_rounding_errors_of_many_rounds_are_no_privacy(
    rounds: int, noise_multiplier: float, delta: float
) -> None:
    """Cohorts of nearly everybody cost what those of everybody do, which has a closed form."""
    exact = dp_accounting.get_epsilon_gaussian(noise_multiplier / math.sqrt(rounds), delta)
    almost = {
        Release(noise_multiplier=noise_multiplier, sampling=PoissonSampling(1 - 1e-9)): rounds
    }
    found = release_epsilon(almost, delta=delta)
    assert exact * (1 - 1e-7) <= found <= exact * (1 + 1e-7)  # the rate itself is 1e-9 below 1
    half = {Release(noise_multiplier=noise_multiplier, sampling=PoissonSampling(0.5)): rounds}
    assert release_epsilon(half, delta=delta) < 0.9 * exact


def test_replace_one_doubles_the_sensitivity_by_both_accountants() -> None:
    """Published as eps 1 and 7 with the sensitivity not doubled; 0.92 and 6.50 under zero-out."""
    for noise_multiplier, zero_out, replaced in ((19.3, 0.92, 1.96), (3.35, 6.50, 15.07)):
        assert epsilon(plan(noise_multiplier)) == pytest.approx(zero_out, abs=5e-3)
        assert epsilon(plan(noise_multiplier, relation=REPLACE)) == pytest.approx(
            replaced, abs=5e-3
        )
        for name in ("pld", "rdp"):
            assert epsilon(plan(noise_multiplier, relation=REPLACE), name) == pytest.approx(
                epsilon(plan(noise_multiplier / 2.0), name), rel=1e-9
            )
    # The library's Renyi accountant does not double by itself and reports 4.7 to 5 here.
    one = plan(1.0, rounds=1, relation=REPLACE)
    assert epsilon(one, delta=1e-5) == pytest.approx(10.00, abs=0.01)
    assert epsilon(one, "rdp", delta=1e-5) > 10.0


def test_zero_out_and_add_remove_cost_the_same() -> None:
    for sampling in (FULL, PoissonSampling(0.1)):
        for name in ("pld", "rdp"):
            assert epsilon(plan(2.0, sampling), name) == epsilon(
                plan(2.0, sampling, relation=NeighboringRelation.ADD_REMOVE), name
            )


# Bounds from both sides -------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "noise_multiplier"), [(0.01, 1.5), (0.1, 0.7)])
def test_poisson_lies_between_an_attack_and_the_renyi_bound(
    rate: float, noise_multiplier: float
) -> None:
    releases = plan(noise_multiplier, PoissonSampling(rate))
    attack = epsilon_lower_bound(
        [(1.0 - rate, 0.0), (rate, 1.0 / noise_multiplier)], [(1.0, 0.0)], rounds=20, delta=DELTA
    )
    exact = epsilon(releases)
    # The attack rounds each of 20 losses down by up to 1e-3.
    assert attack <= exact <= 1.005 * attack + 0.02
    assert exact <= epsilon(releases, "rdp")
    assert exact <= epsilon(plan(noise_multiplier))


@settings(max_examples=3, deadline=None)
@given(
    rate=st.floats(0.01, 0.95),
    noise_multiplier=st.floats(0.8, 30.0),
    rounds=st.integers(1, 20),
    name=st.sampled_from(["pld", "rdp"]),
)
def test_more_rounds_more_users_less_noise_cost_more(
    rate: float, noise_multiplier: float, rounds: int, name: str
) -> None:
    def cost(z: float, q: float, t: int) -> float:
        return epsilon(plan(z, PoissonSampling(q), t), name)

    here = cost(noise_multiplier, rate, rounds)
    room = 1e-3 * here + 1e-3
    assert cost(noise_multiplier * 1.1, rate, rounds) <= here + room
    assert cost(noise_multiplier, rate * 0.9, rounds) <= here + room
    assert cost(noise_multiplier, rate, rounds + 1) >= here - room
    assert here <= epsilon(plan(noise_multiplier, FULL, rounds), name) * (1.0 + 1e-9)


@pytest.mark.parametrize("rate", [0.001, 0.3, 0.5, 0.95])
def test_renyi_curves_are_what_a_renyi_divergence_can_be(rate: float) -> None:
    """Not negative, not decreasing, and exact where an integral can be computed.

    At rates 0.3 to 0.6 and noise multipliers from 8 the fractional orders 1.1 to 10.9 of one
    library give negative epsilons.
    """
    for noise_multiplier in (1.0, 4.0, 8.0, 12.0, 40.0):
        orders, curve = accounting._single_curve(("poisson", noise_multiplier, rate))
        assert np.isfinite(curve).all()
        assert (curve >= 0.0).all()
        assert (np.diff(curve) >= -1e-9 * curve[1:]).all()
        for order, room in ((1.5, 0.6), (2.0, 1e-6), (2.4, 0.1), (5.5, 0.02), (10.9, 0.01)):
            place = int(np.argmin(np.abs(orders - order)))
            truth = renyi_by_integration(rate, noise_multiplier, float(orders[place]))
            assert truth * (1.0 - 1e-6) <= curve[place] <= truth * (1.0 + room)


def renyi_by_integration(rate: float, noise_multiplier: float, order: float) -> float:
    x = np.linspace(-14 * noise_multiplier, 14 * noise_multiplier + 2 * order, 100_001)
    density = np.exp(-(x**2) / (2 * noise_multiplier**2))
    density /= noise_multiplier * math.sqrt(2 * math.pi)
    change = rate * np.expm1((2 * x - 1) / (2 * noise_multiplier**2))
    # The mean change is zero; taking it out keeps the digits when the noise is large.
    excess = np.expm1(order * np.log1p(change)) - order * change
    return math.log1p(float(np.sum(density * excess)) * (x[1] - x[0])) / (order - 1)


def test_a_wrong_value_between_whole_orders_gives_way_to_the_chord() -> None:
    orders = np.array([1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0])
    true = 0.3 * orders
    chords = {1.5: 0.5 * (1 * 0.6) / 0.5, 2.5: (0.5 * (1 * 0.6) + 0.5 * (2 * 0.9)) / 1.5}
    wrong = (-5.0, 0.0, 0.59, 0.81, 1.5, math.nan, math.inf)
    for order, value in [(1.5, -1.0), *((2.5, value) for value in wrong)]:
        broken = np.where(orders == order, value, true)
        checked = accounting._checked_between_integers(orders, broken)
        assert checked == pytest.approx(np.where(orders == order, chords[order], true))


# Fixed-size cohorts -----------------------------------------------------------------------------


def test_fixed_size_cohorts_cost_what_an_instance_of_them_shows() -> None:
    """1,000 of 72,000, noise multiplier 1.14, T = 20: sold as eps 1.

    All others send +1, the target sends +1 or -1, replace-one: relative to the sum of 1,000 others
    the target shifts by 0 or, when drawn, by -2.
    """
    sampling = FixedSizeSampling(1000, population=72_000)
    rate, shift = 1 / 72, 2.0 / 1.14
    bound = epsilon_lower_bound(
        [(1.0, 0.0)], [(1 - rate, 0.0), (rate, -shift)], rounds=20, delta=DELTA
    )
    assert bound == pytest.approx(4.42, abs=0.01)
    replaced = plan(1.14, sampling, relation=REPLACE)
    assert epsilon(replaced) == pytest.approx(4.507, abs=1e-3)
    assert bound <= epsilon(replaced) <= epsilon(replaced, "rdp")


def test_fixed_size_under_zero_out_covers_its_worst_instances() -> None:
    """The stand-in of a user who is not drawn may point the other way: Poisson is too cheap."""
    rate, noise_multiplier = 0.1, 2.5
    releases = plan(noise_multiplier, FixedSizeSampling(1000, population=10_000))
    s = 1.0 / noise_multiplier
    instances = [
        ([(1 - rate, 0.0), (rate, 2 * s)], [(1 - rate, 0.0), (rate, s)]),
        ([(1 - rate, 0.0), (rate, s)], [(1.0, 0.0)]),
        ([(1 - rate, 0.0), (rate, s / 2)], [(1 - rate, 0.0), (rate, -s / 2)]),
    ]
    bounds = [epsilon_lower_bound(a, b, rounds=20, delta=DELTA) for a, b in instances]
    assert epsilon(releases) == pytest.approx(3.532, abs=1e-3)
    assert epsilon(releases, "rdp") == pytest.approx(4.757, abs=1e-3)
    assert max(bounds) <= epsilon(releases)
    assert max(bounds) > epsilon(plan(noise_multiplier, PoissonSampling(rate)))


def test_everybody_in_a_fixed_size_cohort_is_full_participation() -> None:
    everybody = FixedSizeSampling(500, population=500)
    for name in ("pld", "rdp"):
        assert epsilon(plan(5.0, everybody), name) == epsilon(plan(5.0), name)
        # Nearly everybody never costs more than a known cohort.
        nearly = FixedSizeSampling(499, population=500)
        assert epsilon(plan(5.0, nearly), name) == pytest.approx(epsilon(plan(5.0), name))


# The server -------------------------------------------------------------------------------------


def test_the_server_sees_no_amplification() -> None:
    """A user seen in 1, 2, 3 rounds at noise multiplier 1.14: eps 4.0, 6.0, 7.6."""
    for sampling in (PoissonSampling(1 / 72), FixedSizeSampling(1000, population=72_000), FULL):
        release = Release(noise_multiplier=1.14, sampling=sampling)
        seen = [
            both_epsilons({release: n}, delta=DELTA)["epsilon_known_cohorts"] for n in (1, 2, 3)
        ]
        assert seen == pytest.approx([4.004, 5.965, 7.570], abs=1e-3)
    assert epsilon(plan(1.14, PoissonSampling(1 / 72))) < 0.51


# Composition ------------------------------------------------------------------------------------


def test_composition_ignores_order_and_how_equals_are_counted() -> None:
    poisson = Release(noise_multiplier=2.0, sampling=PoissonSampling(0.1, population=100))
    same_cost = Release(noise_multiplier=2.0, sampling=PoissonSampling(0.1, population=999))
    full = Release(noise_multiplier=9.0, sampling=FULL)
    for name in ("pld", "rdp"):
        listed = release_epsilon([poisson, full, same_cost, poisson], delta=DELTA, accountant=name)
        counted = release_epsilon({full: 1, poisson: 3, same_cost: 0}, delta=DELTA, accountant=name)
        assert listed == counted


def test_different_relations_do_not_compose() -> None:
    mixed = {**plan(3.0), **plan(3.0, relation=REPLACE)}
    with pytest.raises(ConfigError, match="got replace-one and zero-out"):
        epsilon(mixed)


def test_nothing_costs_nothing_and_no_noise_costs_everything() -> None:
    for name in ("pld", "rdp"):
        assert epsilon({}, name) == 0.0
        assert epsilon(plan(1.0, rounds=0), name) == 0.0
        assert epsilon(plan(0.0, PoissonSampling(0.1)), name) == math.inf


def test_tiny_noise_is_accounted_without_exhausting_memory() -> None:
    for noise_multiplier in (0.05, 1e-3):
        releases = plan(noise_multiplier, PoissonSampling(0.1))
        assert 1000 < epsilon(releases) <= epsilon(plan(noise_multiplier))


def look(kind: str, noise_multiplier: float, rate: float, rounds: int, times: float) -> float:
    """Epsilon by an interval that is so many times as wide as the one that is chosen."""
    costs = (((kind, noise_multiplier, rate), rounds),)
    interval = times * accounting._interval(costs, DELTA)
    return float(accounting._pld(costs, interval).get_epsilon_for_delta(DELTA))


@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(1.0, 300), (0.05, 30), (0.005, 4)])
@pytest.mark.parametrize("times", [1, 100])
def test_every_look_gives_an_upper_bound(
    noise_multiplier: float, rounds: int, times: float
) -> None:
    """Everybody in every round: the closed form says what is true."""
    true = epsilon(plan(noise_multiplier, FULL, rounds))
    assert look("poisson", noise_multiplier, 1.0, rounds, times) >= true * (1 - 1e-9)


@pytest.mark.slow
def test_many_rounds_of_tiny_noise_take_bounded_memory() -> None:
    """Their losses spread over a billion; a server may ask for them, and each node looks."""
    releases = plan(0.0011, PoissonSampling(0.5), rounds=10_000)
    tracemalloc.start()
    try:
        assert epsilon(releases) > 1e5
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**28


def test_poisson_under_replace_one_is_for_the_loss_distribution_only() -> None:
    releases = plan(2.5, PoissonSampling(0.1), relation=REPLACE)
    shift = 1.0 / 2.5
    attack = epsilon_lower_bound(
        [(0.9, 0.0), (0.1, shift)], [(0.9, 0.0), (0.1, -shift)], rounds=20, delta=DELTA
    )
    assert attack <= epsilon(releases) <= 1.01 * attack
    with pytest.raises(ConfigError, match='accountant must be "pld" for Poisson sampling under'):
        epsilon(releases, "rdp")


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, "1e-5"])
def test_deltas_are_checked(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta must be a number above 0 and below 1, got"):
        release_epsilon(plan(1.0), delta=delta)


# Imports and noise on the console ---------------------------------------------------------------


def test_what_rounding_leaves_of_a_small_delta_bounds_releases_without_a_renyi_curve() -> None:
    """Two releases more are no reason for an infinite epsilon."""
    release = Release(noise_multiplier=4.0, sampling=PoissonSampling(0.05), relation=REPLACE)
    fewer, more = (release_epsilon({release: n}, delta=1e-12) for n in (2_250, 2_256))
    assert fewer < more < 1.01 * fewer
