"""The matrices of correlated noise against dense algebra, brute force and published variances."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    Factorisation,
    TreeAggregation,
)
from flower_privsyn.privacy.factorisation import Memory, _best_of, momentum_workload
from tests.support.correlated import noise_matrix, prefix_std, strategy_matrix, turns

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20)  # 2^k - 1, 2^k, 2^k + 1 among them


def trees(rounds: int) -> list[TreeAggregation]:
    return [
        TreeAggregation(rounds=rounds, restart_every=restart)
        for restart in (None, 1, 2, 3, 4, 5, 7, 8)
    ]


def toeplitz(rounds: int) -> list[Factorisation]:
    bands = sorted({1, min(2, rounds), min(5, rounds), rounds})
    return [
        *(BandedToeplitz.optimal(rounds=rounds, bands=number) for number in bands),
        BufferedLinearToeplitz(rounds=rounds, scales=(0.3, 0.2), decays=(0.9, 0.4)),
        BufferedLinearToeplitz(rounds=rounds, scales=(), decays=()),
    ]


EVERY: list[Factorisation] = [f for rounds in LENGTHS for f in (*toeplitz(rounds), *trees(rounds))]
SOME = EVERY[:: len(EVERY) // 40]


def named(value: Any) -> str:
    if isinstance(value, TreeAggregation):
        return f"tree-{value.rounds}-{value.restart_every}"
    return f"{value.name}-{value.rounds}"


def linear_map(factorisation: Factorisation) -> np.ndarray:
    """What is made of innovations, exactly: they are unit vectors."""
    memory: Memory = {}
    units = np.eye(factorisation.rounds)
    return np.stack([factorisation.next_noise(unit, memory) for unit in units])


@pytest.mark.parametrize("rounds", LENGTHS)
def test_the_stream_is_the_dense_factorisation(rounds: int) -> None:
    for factorisation in EVERY:
        if factorisation.rounds == rounds:
            check_stream(factorisation)


def check_stream(factorisation: Factorisation) -> None:
    strategy, noise = strategy_matrix(factorisation), noise_matrix(factorisation)
    rounds = factorisation.rounds
    # The releases are read off the encoded rounds plus noise: D (C x + z) = x + D z.
    assert noise @ strategy == pytest.approx(np.eye(rounds), abs=1e-12)
    covariance = noise @ noise.T
    streamed = linear_map(factorisation)
    assert streamed @ streamed.T == pytest.approx(covariance, abs=1e-12)
    assert factorisation.round_std == pytest.approx(np.sqrt(np.diag(covariance)))


def test_a_stream_continues_from_its_memory() -> None:
    for factorisation in SOME:
        check_memory(factorisation)


def check_memory(factorisation: Factorisation) -> None:
    generator = np.random.default_rng(5)
    draws = [generator.standard_normal(3) for _ in range(factorisation.rounds)]
    whole: Memory = {}
    expected = [factorisation.next_noise(draw.copy(), whole) for draw in draws]
    memory: Memory = {}
    for draw, noise in zip(draws, expected, strict=True):
        memory = {key: array.copy() for key, array in memory.items()}
        assert (factorisation.next_noise(draw.copy(), memory) == noise).all()


def test_factorisations_come_back_from_the_ledger() -> None:
    for factorisation in SOME:
        text = json.dumps(factorisation.to_dict(), allow_nan=False)
        assert Factorisation.from_dict(json.loads(text)) == factorisation


# Sensitivity --------------------------------------------------------------------------------------

FALLING = BufferedLinearToeplitz(rounds=9, scales=(0.5, 0.3), decays=(0.8, 0.3))
WAVY = BandedToeplitz(rounds=9, coefficients=(1.0, -0.7, 0.4))
RISING = BandedToeplitz(rounds=9, coefficients=(1.0, 0.2, 1.5, 0.9))


def largest_norm(strategy: np.ndarray, sets: list[tuple[int, ...]]) -> float:
    """The largest norm over sets of rounds and over signs of the contributions."""
    best = 0.0
    for chosen in sets:
        columns = strategy[:, list(chosen)]
        for signs in itertools.product((1.0, -1.0), repeat=len(chosen) - 1):
            best = max(best, float(np.linalg.norm(columns @ np.array([1.0, *signs]))))
    return best


@pytest.mark.parametrize("gap", [1, 2, 3, 4, 6, 9, 12])
def test_sensitivity_of_turns(gap: int) -> None:
    for factorisation in (FALLING, WAVY, RISING, *(f for f in EVERY if f.rounds == 9)):
        if factorisation in (WAVY, RISING) and gap < factorisation.bands:
            with pytest.raises(ConfigError, match="must be nonnegative and fall"):
                factorisation.sensitivity(gap)
            continue
        expected = largest_norm(strategy_matrix(factorisation), turns(9, gap))
        assert factorisation.sensitivity(gap) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("factorisation", [FALLING, WAVY, TreeAggregation(rounds=9)], ids=named)
def test_no_contributions_of_any_directions_go_beyond(factorisation: Factorisation) -> None:
    generator = np.random.default_rng(3)
    strategy = strategy_matrix(factorisation)
    limit = factorisation.sensitivity(3)
    for chosen in turns(9, 3):
        vectors = np.zeros((20, 9, 4))
        directions = generator.standard_normal((20, len(chosen), 4))
        directions /= np.linalg.norm(directions, axis=2, keepdims=True)
        vectors[:, list(chosen)] = directions
        norms = np.sqrt(np.sum((strategy @ vectors) ** 2, axis=(1, 2)))
        assert norms.max() <= limit * (1 + 1e-12)


# Toeplitz -----------------------------------------------------------------------------------------


def multiplier(epsilon: float) -> float:
    return float(dp_accounting.get_sigma_gaussian(epsilon, 3e-6))


def rmse(factorisation: Factorisation) -> float:
    """Root mean square over the rounds of the noise in the running total."""
    return float(np.sqrt(np.mean(prefix_std(factorisation) ** 2)))


def noise_at_equal_privacy(
    factorisation: Factorisation, *, gap: int, epsilon: float = 1.0
) -> float:
    return rmse(factorisation) * factorisation.sensitivity(gap) * multiplier(epsilon)


# Computed with other code: root mean square of the prefix noise at epsilon 1, delta 3e-6, in clip
# norms, for (rounds, separation): independent, restarted tree, banded, buffers.
TABLE = {
    (20, 1): (57.886, 57.886, 57.886, 57.886),
    (20, 2): (40.932, 41.895, 31.628, 33.377),
    (20, 10): (18.305, 18.565, 10.467, 10.741),
    (20, 20): (12.944, 12.944, 7.263, 7.283),
    (100, 10): (89.766, 82.640, 37.220, 39.520),
    (100, 100): (28.386, 18.876, 9.2646, 9.2704),
}


@pytest.mark.parametrize(("rounds", "gap"), TABLE)
def test_noise_at_equal_privacy(rounds: int, gap: int) -> None:
    independent, tree, banded, buffers = TABLE[rounds, gap]
    found = {
        "independent": BandedToeplitz(rounds=rounds, coefficients=(1.0,)),
        "tree": TreeAggregation(rounds=rounds, restart_every=gap),
        "banded": BandedToeplitz.optimal(rounds=rounds, bands=gap),
        "buffers": BufferedLinearToeplitz.optimal(rounds=rounds, min_separation=gap),
    }
    noise = {name: noise_at_equal_privacy(f, gap=gap) for name, f in found.items()}
    assert noise["independent"] == pytest.approx(independent, rel=1e-4)
    assert noise["tree"] == pytest.approx(tree, rel=1e-4)
    assert noise["banded"] == pytest.approx(banded, rel=1e-4)
    # One buffer may become one band, which the other search did not find.
    assert 0.94 * buffers <= noise["buffers"] <= buffers * (1 + 1e-4)
    if gap > 1:
        assert 0.24 <= 1 - noise["banded"] / noise["tree"] <= 0.58


def test_sixteen_hundred_rounds_need_three_buffers() -> None:
    once = 1600
    _, scales, decays = _best_of(momentum_workload(1600, 0.0), once, 3)
    found = BufferedLinearToeplitz(rounds=1600, scales=scales, decays=decays)
    scale = 4.454 / found.sensitivity(once)  # epsilon 1.77 at delta 1e-6
    assert rmse(found) * scale * found.sensitivity(once) == pytest.approx(7.99, abs=5e-3)
    tree = TreeAggregation(rounds=1600)
    assert rmse(tree) * tree.sensitivity(once) * scale == pytest.approx(18.80, abs=6e-3)


def with_momentum(one: BandedToeplitz | BufferedLinearToeplitz, workload: Any) -> float:
    """Root mean square noise of running totals in which a round weighs less as it ages."""
    rounds = one.rounds
    total = [[workload[t - s] if s <= t else 0.0 for s in range(rounds)] for t in range(rounds)]
    return float(np.linalg.norm(np.array(total) @ noise_matrix(one)) / rounds**0.5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("gap", [3, 30])
def test_nothing_near_the_optimum_is_better(gap: int, momentum: float) -> None:
    workload = momentum_workload(30, momentum)
    generator = np.random.default_rng(gap)

    def cost(one: BandedToeplitz | BufferedLinearToeplitz) -> float:
        return with_momentum(one, workload) * one.sensitivity(gap)

    banded = BandedToeplitz.optimal(rounds=30, bands=gap, momentum=momentum)
    buffers = BufferedLinearToeplitz.optimal(rounds=30, min_separation=gap, momentum=momentum)
    count = len(buffers.scales)
    for _ in range(30):
        moved = np.array(banded.coefficients)
        moved[1:] += 1e-3 * generator.standard_normal(gap - 1)
        near = BandedToeplitz(rounds=30, coefficients=tuple(moved))
        assert cost(near) >= cost(banded) * (1 - 1e-9)
        scales = np.array(buffers.scales) * np.exp(1e-3 * generator.standard_normal(count))
        moved = np.array(buffers.decays) + 1e-3 * generator.standard_normal(count)
        decays = np.clip(moved, 1e-9, 1)
        if scales.sum() > 1 or decays.max() >= 1:
            continue
        other = BufferedLinearToeplitz(rounds=30, scales=tuple(scales), decays=tuple(decays))
        assert cost(other) >= cost(buffers) * (1 - 1e-9)


def test_everybody_in_every_round_has_nothing_to_gain() -> None:
    assert BufferedLinearToeplitz.optimal(rounds=50).scales == ()
    assert BandedToeplitz.optimal(rounds=50, bands=1).coefficients == (1.0,)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: BandedToeplitz(rounds=3, coefficients=(0.5,)), "coefficients"),
        (lambda: BandedToeplitz(rounds=2, coefficients=(1.0, 0.5, 0.2)), "bands"),
        (lambda: BandedToeplitz(rounds=3, coefficients=(1.0, math.nan)), "coefficients"),
        (lambda: BufferedLinearToeplitz(rounds=3, scales=(0.5,), decays=()), "decays"),
        (lambda: BufferedLinearToeplitz(rounds=3, scales=(0.6, 0.6), decays=(0.5, 0.4)), "scales"),
        (lambda: BufferedLinearToeplitz(rounds=3, scales=(0.5,), decays=(1.0,)), "decays"),
        (lambda: TreeAggregation(rounds=3, restart_every=0), "restart_every"),
    ],
)
def test_bad_values_are_named(build: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build()


# Trees --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", LENGTHS)
def test_a_plain_total_is_one_node_per_binary_one(rounds: int) -> None:
    tree = TreeAggregation(rounds=rounds)
    total = np.tril(np.ones((rounds, rounds))) @ noise_matrix(tree)
    for number, row in enumerate(total, start=1):
        assert sorted(row[row != 0]) == [1.0] * number.bit_count()
    assert prefix_std(tree) ** 2 == pytest.approx([t.bit_count() for t in range(1, rounds + 1)])


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1600])
def test_one_participation_visits_every_level(rounds: int) -> None:
    plain = TreeAggregation(rounds=rounds)
    assert plain.sensitivity(rounds) ** 2 == pytest.approx(math.floor(math.log2(rounds)) + 1)
