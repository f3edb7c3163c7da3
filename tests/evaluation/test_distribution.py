"""Distances between distributions, against closed forms and brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

from flower_privsyn.evaluation.distribution import (
    divergence_area,
    frechet_distance,
    gaussian_frechet,
    mauve,
    mean_discrepancy,
    precision_recall,
)


def normal(n: int, d: int, *, seed: int, shift: float = 0.0) -> npt.NDArray[Any]:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows[:, 0] += shift
    return rows


class TestFrechet:
    def test_equals_the_textbook_formula_on_full_covariances(self) -> None:
        generator = np.random.default_rng(0)
        first, second = (generator.standard_normal((40, 6)) for _ in range(2))
        moments = [(x.mean(axis=0), np.cov(x, rowvar=False)) for x in (first, second)]
        (m, s), (n, t) = moments
        root = scipy.linalg.sqrtm(s @ t).real
        expected = (m - n) @ (m - n) + np.trace(s + t - 2 * root)
        assert gaussian_frechet(m, s, n, t) == pytest.approx(expected, rel=1e-9)

    def test_covariances_of_deficient_rank(self) -> None:
        """Two lines at an angle: tr (S S')^1/2 is s t |cos|."""
        angle = 0.7
        u, v = np.array([1.0, 0.0, 0.0]), np.array([math.cos(angle), math.sin(angle), 0.0])
        zero = np.zeros(3)
        found = gaussian_frechet(zero, 4.0 * np.outer(u, u), zero, 9.0 * np.outer(v, v))
        assert found == pytest.approx(4.0 + 9.0 - 2 * 2 * 3 * math.cos(angle), rel=1e-9)
        point = np.zeros((3, 3))
        assert gaussian_frechet(zero, point, u, point) == pytest.approx(1.0)

    def test_two_samples_of_one_distribution_are_apart_and_the_extrapolation_is_not(self) -> None:
        pairs = [(normal(300, 8, seed=2 * k), normal(300, 8, seed=2 * k + 1)) for k in range(12)]
        found = [frechet_distance(*pair) for pair in pairs]
        plain = np.mean([record.squared for record in found])
        extrapolated = np.mean([record.extrapolated for record in found])
        assert plain > 0.04
        assert abs(extrapolated) < plain / 4


class TestPrecisionRecall:
    def test_equals_brute_force(self) -> None:
        synthetic, private = normal(60, 4, seed=5, shift=0.7), normal(45, 4, seed=6)
        across = np.linalg.norm(synthetic[:, None] - private[None], axis=-1)

        def radii(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.sort(np.linalg.norm(rows[:, None] - rows[None], axis=-1), axis=1)[:, 3]

        found = precision_recall(synthetic, private)
        assert found.precision == (across <= radii(private)).any(axis=1).mean()
        assert found.recall == (across <= radii(synthetic)[:, None]).any(axis=0).mean()
        assert 0 < found.precision < 1
        assert 0 < found.recall < 1


class TestMeanDiscrepancy:
    def test_by_hand(self) -> None:
        x, y = np.array([[0.0], [1.0], [3.0]]), np.array([[0.0], [2.0], [4.0]])

        def k(a: float, b: float) -> float:
            return math.exp(-((a - b) ** 2) / (2 * 2.0**2))  # the median distance of y is 2

        within_x = (k(0, 1) + k(0, 3) + k(1, 3)) / 3
        within_y = (k(0, 2) + k(0, 4) + k(2, 4)) / 3
        across = sum(k(a, b) for a in (0, 1, 3) for b in (0, 2, 4)) / 9
        found = mean_discrepancy(x, y)
        assert found.squared == pytest.approx(within_x + within_y - 2 * across, rel=1e-9)


class TestMauve:
    def test_equal_sets_have_one(self) -> None:
        rows = normal(100, 6, seed=1)
        found = mauve(rows, rows)
        assert found.score == pytest.approx(1.0)
        assert found.smoothed == pytest.approx(1.0)

    def test_nearer_sets_have_more(self) -> None:
        private = normal(300, 6, seed=1, shift=2.0)
        scores = [
            mauve(normal(300, 6, seed=2, shift=shift), private).smoothed
            for shift in (2.0, 1.0, -2.0)
        ]
        assert scores[0] > scores[1] > scores[2]

    def test_area_of_disjoint_histograms(self) -> None:
        """The curve is ((1 - w)^c, w^c): its area is c B(c + 1, c)."""
        exact = 5 * math.gamma(6) * math.gamma(5) / math.gamma(11)
        p, q = np.array([1.0, 0.0]), np.array([0.0, 1.0])
        assert divergence_area(p, q, points=20_001) == pytest.approx(exact, rel=1e-3)
