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
