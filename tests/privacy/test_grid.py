"""Nobody peels the noise off: what the digits of a release say about the sum behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import (
    BandedToeplitz,
    BufferedLinearToeplitz,
    CorrelatedNoise,
    Correlation,
    Factorisation,
    GaussianMechanism,
    InsecureRandom,
    SecureRandom,
    TreeAggregation,
)
from flower_privsyn.privacy.mechanisms import GRID, from_grid, to_grid
from flower_privsyn.queries import (
    Cohort,
    MeanSimilarity,
    ModelDelta,
    NearestNeighborHistogram,
    Query,
)
from tests.support.attacks import ATTACKS, Pair, box_muller, refuted, sound

RELEASES = 200_000
DIMENSION = 8


def users(number: int, *, seed: int) -> Cohort:
    """Users with two records each."""
    records = np.random.default_rng(seed).standard_normal((2 * number, DIMENSION))
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    return Cohort(records.astype(np.float32), np.repeat(np.arange(number), 2), number)


def _candidates() -> dict[str, np.ndarray]:
    rows = np.random.default_rng(3).standard_normal((6, DIMENSION)).astype(np.float32)
    return {"candidates": rows / np.linalg.norm(rows, axis=1, keepdims=True)}


SPAN = MeanSimilarity(centre="all", answer_space="span")
QUERIES: dict[str, tuple[Query, dict[str, np.ndarray]]] = {
    "votes": (NearestNeighborHistogram(clip="count", max_samples=8), _candidates()),
    "span": (SPAN, SPAN.broadcast(_candidates()["candidates"])),
    "candidates": (MeanSimilarity(centre="all", answer_space="candidates"), _candidates()),
    "model delta": (
        ModelDelta(clip_to=0.05),
        {"parameters": np.zeros(DIMENSION, dtype=np.float32)},
    ),
}


def two_coordinates(query: Query, broadcast: dict[str, np.ndarray]) -> tuple[Pair, Pair]:
    """The sum of forty users and a canary, and that without the canary, where they differ most."""
    everybody = users(41, seed=5)
    if isinstance(query, ModelDelta):
        everybody = Cohort(everybody.records[::2], np.arange(41), 41)
    present = query.answer(everybody, broadcast)
    absent = query.answer(everybody.select(np.arange(41) < 40), broadcast)
    first, second = np.argsort(-np.abs(present - absent), kind="stable")[:2]
    return (
        (np.full(RELEASES, present[first]), np.full(RELEASES, present[second])),
        (np.full(RELEASES, absent[first]), np.full(RELEASES, absent[second])),
    )


def halves(values: np.ndarray) -> Pair:
    return values[: len(values) // 2], values[len(values) // 2 :]


@pytest.mark.parametrize("name", QUERIES)
def test_no_release_says_that_the_canary_is_there(name: str) -> None:
    """Everybody else is known, and the canary's answer: is it in the sum? The law alone tells."""
    query, broadcast = QUERIES[name]
    present, absent = two_coordinates(query, broadcast)
    mechanism = GaussianMechanism(noise_multiplier=3.3, l2_sensitivity=query.clip_norm)
    total, std = np.concatenate(present), mechanism.standard_deviation
    released = halves(mechanism.release(total, random=SecureRandom()))
    assert refuted(released, present, absent, std) == 0
    for values in released:
        to_grid("released", values)


def test_no_release_of_wide_noise_does() -> None:
    """Where 2^-53 of a turn is more than a step of the grid."""
    mechanism = GaussianMechanism(noise_multiplier=2.0**24, l2_sensitivity=1.0)
    present = (np.full(20_000, 41.0), np.full(20_000, 3.0))
    absent = (np.full(20_000, 40.0), np.full(20_000, 3.0))
    released = halves(mechanism.release(np.concatenate(present), random=SecureRandom()))
    assert refuted(released, present, absent, 2.0**24) == 0


CORRELATIONS: dict[str, Factorisation] = {
    "banded": BandedToeplitz(rounds=3, coefficients=(1.0, 0.5, 0.375)),
    "buffers": BufferedLinearToeplitz(rounds=3, scales=(0.4, 0.1), decays=(0.9, 0.5)),
    "tree": TreeAggregation(rounds=3, restart_every=2),
}


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize("multiplier", [3.3, 2.0**24])
def test_no_round_of_correlated_noise_does(name: str, multiplier: float, tmp_path: Path) -> None:
    query, broadcast = QUERIES["model delta"]
    present, absent = two_coordinates(query, broadcast)
    present = (present[0][:20_000], present[1][:20_000])
    absent = (absent[0][:20_000], absent[1][:20_000])
    correlation = Correlation(factorisation=CORRELATIONS[name])
    mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=query.clip_norm)
    stream = CorrelatedNoise(correlation, random=SecureRandom(), path=tmp_path / "noise.npz")
    for number in (1, 2, 3):
        stream.prepare(number, 40_000)
        released = halves(mechanism.release(np.concatenate(present), random=stream))
        std = mechanism.standard_deviation * stream.deviation(number)
        assert refuted(released, present, absent, std) == 0


@pytest.mark.parametrize("name", CORRELATIONS)
@pytest.mark.parametrize("std", [2.0**28, 3.3 * 2.0**30, 2.0**55])
def test_the_last_digits_of_correlated_noise_are_fair(
    name: str, std: float, tmp_path: Path
) -> None:
    """In every round, also where a float64 of that size has none."""
    correlation = Correlation(factorisation=CORRELATIONS[name])
    stream = CorrelatedNoise(correlation, random=InsecureRandom(12), path=tmp_path / "noise.npz")
    for number in (1, 2, 3):
        stream.prepare(number, 40_000)
        steps = stream.rounded_normal(std, 40_000)
        for shift in (0, 6):
            counts = np.bincount((steps >> shift) & 255, minlength=256)
            assert stats.power_divergence(counts, lambda_="log-likelihood").pvalue > 1e-6


@pytest.mark.parametrize("on_the_grid", [False, True])
def test_the_attack_sees_through_noise_of_floats(on_the_grid: bool) -> None:
    """The noise of before, and that noise merely rounded where an angle's steps are coarse."""
    bits = np.random.default_rng(4).integers(0, 2**53, size=(2, 2000)).astype(np.float64)
    std = 2.0**24 if on_the_grid else 33.0
    noise = [std * draw for draw in box_muller(*bits)]
    if on_the_grid:
        noise = [np.rint(part / GRID) * GRID for part in noise]
    truth = (np.full(2000, 5.0), np.full(2000, 3.0))
    released = (truth[0] + noise[0], truth[1] + noise[1])
    absent = (np.full(2000, 4.0), np.full(2000, 3.0))
    assert refuted(released, truth, absent, std) > 1700
    attack = ATTACKS[2 if on_the_grid else 1]
    assert sound(attack, released, truth, std)


# The arithmetic ----------------------------------------------------------------------------------


def test_sums_and_noise_add_as_integers_also_where_floats_have_no_digits_left() -> None:
    """At 2^22 a float64 has one digit of the grid to spare; the noise is as fine as near zero."""
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0)
    near = mechanism.release(np.zeros(5000), random=InsecureRandom(3))
    far = mechanism.release(np.full(5000, 2.0**22), random=InsecureRandom(3)) - 2.0**22
    assert (near == far).all()


@pytest.mark.parametrize("std", [2.0**-10, 1.0, 2.0**12, 2.0**27])
def test_the_grid_holds_noise_of_every_size(std: float) -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=std)
    noise = mechanism.release(np.zeros(100_000), random=SecureRandom())
    assert noise.std() == pytest.approx(std, rel=0.01)
    assert (to_grid("noise", noise) * GRID == noise).all()


@pytest.mark.parametrize(("multiplier", "sensitivity"), [(1e6, 1e6), (0.001, 1e-8)])
def test_noise_that_the_grid_cannot_carry_is_refused(multiplier: float, sensitivity: float) -> None:
    with pytest.raises(ConfigError, match=r"must be between 2\^-30 and 2\^28"):
        GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=sensitivity)


@pytest.mark.parametrize("value", [2.0**-31, 0.1, 2.0**32])
def test_what_is_not_on_the_grid_is_not_noised(value: float) -> None:
    mechanism = GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=1.0)
    with pytest.raises(ConfigError, match=r"^total must .*2\^"):
        mechanism.release(np.array([1.0, value]), random=SecureRandom())


def test_grid_and_back() -> None:
    values = np.array([0.0, GRID, -GRID, 2.0**22 + GRID, -(2.0**22)])
    assert to_grid("values", values).tolist() == [0, 1, -1, 2**52 + 1, -(2**52)]
    assert (from_grid(to_grid("values", values)) == values).all()


@pytest.mark.parametrize(
    "factorisation",
    [
        BandedToeplitz(rounds=64, coefficients=(1.0, 0.5, 0.375, 0.3125)),
        BufferedLinearToeplitz(rounds=64, scales=(0.4, 0.1), decays=(0.99, 0.5)),
    ],
    ids=["banded", "buffers"],
)
def test_correlated_noise_is_computed_well_below_its_last_part(
    factorisation: Factorisation, tmp_path: Path
) -> None:
    """Against long doubles: less than 2^-40 of an innovation, under a variate of 2^-10 of it."""

    class Recorded(InsecureRandom):
        """Remembers the innovations."""

        def rounded_normal(self, standard_deviation: float, size: int) -> np.ndarray:
            drawn = super().rounded_normal(standard_deviation, size)
            innovations.append(drawn.astype(np.longdouble) / standard_deviation)
            return drawn

    innovations: list[np.ndarray] = []
    rounds = Correlation(factorisation=factorisation)
    stream = CorrelatedNoise(rounds, random=Recorded(11), path=tmp_path / "noise.npz")
    series = factorisation.series.astype(np.longdouble)
    noise: list[np.ndarray] = []
    for number in range(1, 65):
        stream.prepare(number, 50)
        exact = innovations[number - 1]
        for lag in range(1, number):
            if lag < len(series):
                exact = exact - series[lag] * noise[-lag]
        noise.append(exact)
        assert stream._prepared is not None
        assert np.abs(stream._prepared - exact).max() < 2.0**-40
