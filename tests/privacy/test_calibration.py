"""Calibrated noise: never above the budget, hardly above the least, always the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import dp_accounting
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
    calibrate_noise_multiplier,
    release_epsilon,
)

REFERENCE = json.loads((Path(__file__).parents[1] / "data" / "noise_reference.json").read_text())
ROWS: list[dict[str, Any]] = REFERENCE["multiplier_rows"]
ROUNDS, DELTA = REFERENCE["multiplier_T"], REFERENCE["multiplier_delta"]


def name(row: dict[str, Any]) -> str:
    return f"rate-{row['q'].replace('/', 'of')}-eps-{row['eps']}"


def slow(row: dict[str, Any]) -> Any:
    return pytest.param(row, marks=pytest.mark.slow)


#: Those of full participation, and two of the rates at which a search is quick.
QUICK = [row if number in (*range(6), 6, 13) else slow(row) for number, row in enumerate(ROWS)]


def sampling_of(row: dict[str, Any]) -> Sampling:
    return FullParticipation() if row["q_float"] == 1 else PoissonSampling(row["q_float"])


def spent(multiplier: float, sampling: Sampling, rounds: int, accountant: str = "pld") -> float:
    release = Release(noise_multiplier=multiplier, sampling=sampling)
    return release_epsilon({release: rounds}, delta=DELTA, accountant=accountant)


@pytest.mark.parametrize("row", QUICK, ids=name)
def test_calibration_by_loss_distributions(row: dict[str, Any]) -> None:
    check_calibration(row, "pld")


@pytest.mark.parametrize("row", QUICK, ids=name)
def test_calibration_by_renyi_divergence(row: dict[str, Any]) -> None:
    """Between what two other libraries found with their own orders.

    The upper reference stopped up to 3 % above the least multiplier of its own accountant; the
    lower one used more orders, and is unsound in one cell.
    """
    multiplier = check_calibration(row, "rdp")
    assert multiplier <= row["sigma_rdp_dp_accounting"] * (1.0 + 1e-4)
    if not row["opacus_unsound"]:
        assert multiplier >= row["sigma_rdp_opacus_wide_orders"] * (1.0 - 2e-4)


def check_calibration(row: dict[str, Any], accountant: str) -> float:
    sampling = sampling_of(row)
    multiplier = calibrate_noise_multiplier(
        epsilon=row["eps"], delta=DELTA, rounds=ROUNDS, sampling=sampling, accountant=accountant
    )
    assert spent(multiplier, sampling, ROUNDS, accountant) <= row["eps"]
    assert spent(multiplier * (1.0 - 2e-4), sampling, ROUNDS, accountant) > row["eps"]
    if accountant == "pld":
        assert multiplier == pytest.approx(row["sigma_pld"], rel=1e-4)
    return multiplier


@settings(max_examples=50, deadline=None)
@given(epsilon=st.floats(0.01, 50.0), delta=st.floats(1e-12, 1e-2), rounds=st.integers(1, 2000))
def test_full_participation_is_the_closed_form(epsilon: float, delta: float, rounds: int) -> None:
    def calibrated(relation: NeighboringRelation) -> float:
        return calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            sampling=FullParticipation(),
            relation=relation,
        )

    multiplier = calibrated(NeighboringRelation.ZERO_OUT)
    exact = math.sqrt(rounds) * dp_accounting.get_sigma_gaussian(epsilon, delta)
    assert multiplier == pytest.approx(exact, rel=1e-7)
    release = Release(noise_multiplier=multiplier, sampling=FullParticipation())
    assert release_epsilon({release: rounds}, delta=delta) <= epsilon
    assert calibrated(NeighboringRelation.REPLACE_ONE) == pytest.approx(2.0 * exact, rel=1e-7)


def test_fixed_size_cohorts_need_more_noise_than_poisson_ones() -> None:
    arguments = {"epsilon": 1.0, "delta": DELTA, "rounds": 20}
    fixed_size = FixedSizeSampling(1000, population=10_000)
    fixed = calibrate_noise_multiplier(sampling=fixed_size, **arguments)
    assert spent(fixed, fixed_size, 20) <= 1.0
    assert spent(fixed * (1.0 - 2e-4), fixed_size, 20) > 1.0
    assert spent(fixed / 3.0, PoissonSampling(0.1), 20) < 1.0


@pytest.mark.parametrize(
    ("accountant", "epsilon"),
    [
        *(("pld", 1e-3), ("rdp", 1e-2), ("rdp", 100.0)),
        pytest.param("pld", 100.0, marks=pytest.mark.slow),
    ],
)
def test_extreme_budgets(epsilon: float, accountant: str) -> None:
    for sampling in (FullParticipation(), PoissonSampling(0.1)):
        multiplier = calibrate_noise_multiplier(
            epsilon=epsilon, delta=DELTA, rounds=20, sampling=sampling, accountant=accountant
        )
        assert spent(multiplier, sampling, 20, accountant) <= epsilon


@pytest.mark.parametrize(
    ("epsilon", "delta", "sampling"),
    [
        # A delta above the chance of ever taking part: any noise would do.
        pytest.param(1.0, 0.1, PoissonSampling(0.001), marks=pytest.mark.slow),
        (1e7, 1e-5, FullParticipation()),
    ],
)
def test_a_budget_that_needs_no_noise_is_refused(
    epsilon: float, delta: float, sampling: Sampling
) -> None:
    with pytest.raises(ConfigError, match="which is no privacy; choose a smaller epsilon"):
        calibrate_noise_multiplier(epsilon=epsilon, delta=delta, rounds=1, sampling=sampling)


@pytest.mark.parametrize(
    ("sampling", "accountant"),
    [(FullParticipation(), "pld"), (FullParticipation(), "rdp"), (PoissonSampling(0.9), "rdp")],
)
def test_a_budget_no_noise_can_keep_is_refused(sampling: Sampling, accountant: str) -> None:
    with pytest.raises(ConfigError, match="needs a noise multiplier above 250000; choose a larger"):
        calibrate_noise_multiplier(
            epsilon=1e-6, delta=1e-12, rounds=20, sampling=sampling, accountant=accountant
        )
