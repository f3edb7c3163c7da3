"""One user on several nodes, with a coin on each: what it costs, and what has no bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from flower_privsyn.errors import ConfigError, LedgerError
from flower_privsyn.privacy import (
    CyclicSampling,
    FixedSizeSampling,
    FullParticipation,
    GaussianMechanism,
    NeighboringRelation,
    PoissonSampling,
    PrivacyLedger,
    Release,
    Sampling,
    accountant,
    budget_report,
    calibrate_noise_multiplier,
    known_cohorts_epsilon,
    release_epsilon,
)
from flower_privsyn.privacy.accounting import supports
from flower_privsyn.privacy.mixture import mixture_loss_distribution
from tests.support.lower_bounds import epsilon_lower_bound

PLD = accountant("pld")


def of_nodes(
    nodes: int, *, multiplier: float, rate: float = 0.1, sampling: Sampling | None = None
) -> Release:
    return Release(
        noise_multiplier=multiplier,
        sampling=sampling or PoissonSampling(rate),
        max_nodes_per_user=nodes,
    )


def integrated_delta(deviation: float, coins: int, rate: float, epsilon: float) -> float:
    """The larger of both divergences of N(J, s^2), J ~ Bin(k, q), and N(0, s^2), by quadrature."""
    heads = stats.binom.pmf(np.arange(coins + 1), coins, rate)

    def drawn(x: float) -> float:
        return float(heads @ stats.norm.pdf(x - np.arange(coins + 1), scale=deviation))

    def none(x: float) -> float:
        return float(stats.norm.pdf(x, scale=deviation))

    def over(one: Callable[[float], float], other: Callable[[float], float]) -> float:
        def gap(x: float) -> float:
            return max(0.0, one(x) - math.exp(epsilon) * other(x))

        ends = (-12.0 * deviation, coins + 12.0 * deviation)
        return float(integrate.quad(gap, *ends, limit=2000, epsabs=1e-12)[0])

    return max(over(drawn, none), over(none, drawn))


@pytest.mark.parametrize(
    ("nodes", "rate", "deviation", "epsilon"),
    [(2, 0.1, 0.5, 0.1), (2, 0.1, 0.5, 1.0), (3, 0.4, 2.0, 0.3), (5, 0.02, 1.0, 0.2)],
)
def test_delta_is_that_of_the_integral(
    nodes: int, rate: float, deviation: float, epsilon: float
) -> None:
    release = of_nodes(nodes, multiplier=deviation / nodes, rate=rate)
    true = integrated_delta(deviation, nodes, rate, epsilon)
    told = PLD.delta([release], epsilon=epsilon)
    # Quadrature across the kink knows the integral to seven digits.
    assert true * (1 - 1e-6) <= told <= true * 1.001


def test_sensitivity_k_at_rate_q_is_no_bound() -> None:
    """The example of two nodes: 0.118 is true, 0.094 is what one coin for both would cost."""
    assert PLD.delta([of_nodes(2, multiplier=0.25)], epsilon=0.1) == pytest.approx(0.118, abs=5e-4)
    assert PLD.delta([of_nodes(1, multiplier=0.25)], epsilon=0.1) == pytest.approx(0.0936, abs=5e-4)


def test_vectors_of_every_direction_cost_less_than_parallel_ones() -> None:
    """Two nodes, two orthogonal contributions of norm 1, integrated over the plane."""
    deviation, rate, epsilon = 0.5, 0.1, 0.1
    axis = np.linspace(-5.0, 6.0, 1101)
    cell = (axis[1] - axis[0]) ** 2
    shifted = stats.norm.pdf(axis - 1.0, scale=deviation)
    none = stats.norm.pdf(axis, scale=deviation)
    one = (1 - rate) * none + rate * shifted
    drawn, nobody = np.outer(one, one), np.outer(none, none)
    for first, second in ((drawn, nobody), (nobody, drawn)):
        delta = np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * cell
        assert delta < 0.118
    assert np.maximum(drawn - math.exp(epsilon) * nobody, 0.0).sum() * cell > 0.08


def test_several_rounds_lie_above_what_an_attack_shows() -> None:
    # In units of the noise: shifts of j / (k z).
    nodes, multiplier, rate, delta = 3, 1.0, 0.2, 1e-5
    heads = stats.binom.pmf(np.arange(nodes + 1), nodes, rate)
    mixture = [(float(p), j / (nodes * multiplier)) for j, p in enumerate(heads)]
    shown = epsilon_lower_bound(mixture, [(1.0, 0.0)], rounds=10, delta=delta)
    told = release_epsilon({of_nodes(nodes, multiplier=multiplier, rate=rate): 10}, delta=delta)
    assert shown <= told <= 1.05 * shown


@pytest.mark.parametrize(("nodes", "rate", "deviation"), [(2, 0.1, 0.5), (3, 0.3, 4.0)])
def test_the_distribution_is_the_librarys(nodes: int, rate: float, deviation: float) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_mixture_gaussian_mechanism

    ours = mixture_loss_distribution(deviation, nodes, rate, interval=1e-2)
    theirs = from_mixture_gaussian_mechanism(
        deviation,
        list(range(nodes + 1)),
        list(stats.binom.pmf(np.arange(nodes + 1), nodes, rate)),
        value_discretization_interval=1e-2,
    )
    for epsilon in (0.0, 0.1, 1.0, 2.0):
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilon), rel=1e-6
        )


@pytest.mark.parametrize(
    "sampling",
    [
        FullParticipation(),
        PoissonSampling(1.0),
        CyclicSampling(groups=4, rounds=8, salt="0" * 32),
    ],
)
def test_without_coins_the_norm_bound_is_all(sampling: Sampling) -> None:
    alone = release_epsilon({of_nodes(1, multiplier=2.0, sampling=sampling): 5}, delta=1e-6)
    assert release_epsilon({of_nodes(7, multiplier=2.0, sampling=sampling): 5}, delta=1e-6) == alone


def test_known_cohorts_see_k_clip_norms_in_every_round() -> None:
    told = known_cohorts_epsilon({of_nodes(2, multiplier=1.5): 4}, delta=1e-6)
    assert told == release_epsilon(
        {Release(noise_multiplier=1.5, sampling=FullParticipation()): 4}, delta=1e-6
    )


def test_turns_are_the_same_on_every_node() -> None:
    plan = CyclicSampling(groups=5, rounds=10, salt="ab" * 16)
    for number in range(1, 11):
        turn = plan.of_round(number)
        here = turn.participants(["x", "shared", "y"], key=b"1" * 16)
        there = turn.participants(["shared", "z"], key=b"2" * 16)
        assert here[1] == there[0]


def test_calibration_meets_the_budget() -> None:
    wanted = {"delta": 1e-5, "rounds": 10, "sampling": PoissonSampling(0.2)}
    multiplier = calibrate_noise_multiplier(epsilon=2.0, max_nodes_per_user=2, **wanted)  # type: ignore[arg-type]
    spent = release_epsilon({of_nodes(2, multiplier=multiplier, rate=0.2): 10}, delta=1e-5)
    assert 1.998 < spent <= 2.0
    assert 2 * multiplier > calibrate_noise_multiplier(epsilon=2.0, **wanted)  # type: ignore[arg-type]


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_nodes_per_user must be 1 for fixed-size"):
        of_nodes(2, multiplier=1.0, sampling=FixedSizeSampling(5, population=10))
    with pytest.raises(ConfigError, match='must be 1 for Poisson .* "replace-one", got 2'):
        Release(
            noise_multiplier=1.0,
            sampling=PoissonSampling(0.5),
            relation=NeighboringRelation.REPLACE_ONE,
            max_nodes_per_user=2,
        )
    with pytest.raises(ConfigError, match='must be "pld" for Poisson sampling of users on several'):
        release_epsilon([of_nodes(2, multiplier=1.0)], delta=1e-6, accountant="rdp")
    relation = NeighboringRelation.ZERO_OUT
    for name, supported in (("pld", True), ("rdp", False)):
        assert supported is supports(
            PoissonSampling(0.5), relation, accountant=name, max_nodes_per_user=2
        )
    for bad in (0, 1001, 1.5, True):
        with pytest.raises(ConfigError, match="max_nodes_per_user"):
            of_nodes(bad, multiplier=1.0)  # type: ignore[arg-type]


def test_budget_report_says_none_where_there_is_no_bound() -> None:
    report = budget_report(
        noise_multiplier=1.0,
        delta=1e-5,
        rounds=3,
        sampling=PoissonSampling(0.2),
        max_nodes_per_user=2,
    )
    assert report["inputs"]["max_nodes_per_user"] == 2
    assert report["epsilon_release"]["rdp"] is None
    assert report["epsilon_release"]["pld"] > 0


def test_the_ledger_states_and_charges_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=16.0)
    sampling = PoissonSampling(0.2)
    with PrivacyLedger.create(path, delta=1e-5, epsilon_budget=None) as ledger:
        for number, nodes in ((1, 2), (2, 1)):
            started = ledger.begin(
                round=number,
                query="votes",
                mechanism=mechanism,
                sampling=sampling,
                planned_users=10,
                max_nodes_per_user=nodes,
            )
            assert started["max_nodes_per_user"] == nodes
            assert ledger.charge(round=number, num_users=10)["max_nodes_per_user"] == nodes
        wanted = release_epsilon(
            [of_nodes(2, multiplier=1.0, rate=0.2), of_nodes(1, multiplier=1.0, rate=0.2)],
            delta=1e-5,
        )
        assert ledger.epsilon_release == pytest.approx(wanted, rel=1e-12)
    assert PrivacyLedger.read(path).epsilon_release == ledger.epsilon_release


def test_correlated_rounds_keep_it(tmp_path: Path) -> None:
    from flower_privsyn.privacy import BufferedLinearToeplitz, Correlation, Participation

    participation = Participation(rounds=4)
    matrix = BufferedLinearToeplitz.optimal(participation, buffers=2)
    correlation = Correlation.create(matrix, participation)
    same = {
        "query": "delta",
        "mechanism": GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=2.0),
        "sampling": FullParticipation(10),
        "planned_users": 10,
        "correlation": correlation,
    }
    with PrivacyLedger.create(tmp_path / "l.jsonl", delta=1e-5, epsilon_budget=None) as ledger:
        ledger.begin(round=1, max_nodes_per_user=2, **same)  # type: ignore[arg-type]
        ledger.charge(round=1, num_users=10)
        with pytest.raises(LedgerError, match="does not have the noise and the sampling"):
            ledger.begin(round=2, max_nodes_per_user=1, **same)  # type: ignore[arg-type]
