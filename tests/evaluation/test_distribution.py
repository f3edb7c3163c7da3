"""Distances between distributions, against closed forms and brute force."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg

from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation import STAMP
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
    def test_gaussians_with_one_covariance_differ_by_their_means(self) -> None:
        spread = np.diag([1.0, 4.0, 0.25])
        assert gaussian_frechet(
            np.array([1.0, 2.0, 0.0]), spread, np.array([0.0, 0.0, 2.0]), spread
        ) == pytest.approx(9.0)

    def test_commuting_covariances(self) -> None:
        # (sqrt(a) - sqrt(b))^2 along each common axis.
        first, second = np.diag([1.0, 9.0]), np.diag([4.0, 0.25])
        turn = np.array([[0.6, -0.8], [0.8, 0.6]])
        zero = np.zeros(2)
        found = gaussian_frechet(zero, turn @ first @ turn.T, zero, turn @ second @ turn.T)
        assert found == pytest.approx((1 - 2) ** 2 + (3 - 0.5) ** 2)

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

    def test_fewer_texts_than_dimensions(self) -> None:
        rows = normal(20, 50, seed=1)
        same = frechet_distance(rows, rows[::-1])
        assert same.rank_deficient
        assert same.squared == pytest.approx(0.0, abs=1e-9)
        moved = frechet_distance(rows, rows + 0.5)
        assert moved.squared == pytest.approx(50 * 0.25, rel=1e-9)
        assert moved.mean_part == pytest.approx(50 * 0.25, rel=1e-9)

    def test_two_samples_of_one_distribution_are_apart_and_the_extrapolation_is_not(self) -> None:
        pairs = [(normal(300, 8, seed=2 * k), normal(300, 8, seed=2 * k + 1)) for k in range(12)]
        found = [frechet_distance(*pair) for pair in pairs]
        plain = np.mean([record.squared for record in found])
        extrapolated = np.mean([record.extrapolated for record in found])
        assert plain > 0.04
        assert abs(extrapolated) < plain / 4
        assert not found[0].rank_deficient

    def test_the_extrapolation_keeps_a_true_distance(self) -> None:
        found = frechet_distance(normal(1500, 5, seed=3, shift=2.0), normal(1500, 5, seed=4))
        assert found.extrapolated == pytest.approx(4.0, rel=0.1)

    def test_one_dimension(self) -> None:
        rows = np.array([[0.0], [1.0], [2.0], [3.0]])
        assert frechet_distance(rows, rows + 3.0).squared == pytest.approx(9.0)


class TestPrecisionRecall:
    def test_by_hand(self) -> None:
        # On a line, k = 1. Private radii: 1 around 0 and 1, 9 around 10.
        private = np.array([[0.0], [1.0], [10.0]])
        synthetic = np.array([[-1.0], [-1.5], [30.0]])
        found = precision_recall(synthetic, private, neighbors=1)
        # -1 is on the ball around 0; -1.5 and 30 are in none.
        assert found.precision == pytest.approx(1 / 3)
        # Synthetic radii: 0.5 around -1 and -1.5, 31 around 30, which holds 0, 1 and 10.
        assert found.recall == pytest.approx(1.0)

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

    def test_blocks_do_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        synthetic, private = normal(60, 4, seed=5), normal(45, 4, seed=6)
        whole = precision_recall(synthetic, private)
        monkeypatch.setattr("flower_privsyn.evaluation.neighbors._BLOCK_MIB", 1e-3)
        assert precision_recall(synthetic, private) == whole

    def test_copies_and_strangers(self) -> None:
        rows = normal(40, 5, seed=7)
        copies = precision_recall(rows, rows)
        assert (copies.precision, copies.recall) == (1.0, 1.0)
        away = precision_recall(rows, rows + 100.0)
        assert (away.precision, away.recall) == (0.0, 0.0)

    def test_repeated_texts_cover_little(self) -> None:
        """A ball of radius zero holds its centre alone."""
        private = normal(50, 5, seed=8)
        collapsed = precision_recall(np.repeat(private[:2], 20, axis=0), private)
        assert collapsed.precision == 1.0
        assert collapsed.recall == pytest.approx(2 / 50)


class TestMeanDiscrepancy:
    def test_by_hand(self) -> None:
        x, y = np.array([[0.0], [1.0], [3.0]]), np.array([[0.0], [2.0], [4.0]])

        def k(a: float, b: float) -> float:
            return math.exp(-((a - b) ** 2) / 2.0)

        within_x = (k(0, 1) + k(0, 3) + k(1, 3)) / 3
        within_y = (k(0, 2) + k(0, 4) + k(2, 4)) / 3
        across = sum(k(a, b) for a in (0, 1, 3) for b in (0, 2, 4)) / 9
        found = mean_discrepancy(x, y, bandwidth=1.0)
        assert found.squared == pytest.approx(within_x + within_y - 2 * across, rel=1e-9)

    def test_the_jackknife_leaves_out_each_text(self) -> None:
        x, y = normal(7, 2, seed=1, shift=1.0), normal(5, 2, seed=2)
        without_x = [
            mean_discrepancy(np.delete(x, i, axis=0), y, bandwidth=1.3).squared for i in range(7)
        ]
        without_y = [
            mean_discrepancy(x, np.delete(y, i, axis=0), bandwidth=1.3).squared for i in range(5)
        ]
        variance = 6 * np.var(without_x) + 4 * np.var(without_y)
        found = mean_discrepancy(x, y, bandwidth=1.3)
        assert found.standard_error == pytest.approx(np.sqrt(variance), rel=1e-9)

    def test_unbiased_and_with_the_right_error(self) -> None:
        apart = [
            mean_discrepancy(
                normal(60, 3, seed=2 * s, shift=1.0), normal(40, 3, seed=2 * s + 1), bandwidth=1.5
            )
            for s in range(150)
        ]
        values = np.array([record.squared for record in apart])
        errors = np.array([record.standard_error for record in apart])
        assert errors.mean() == pytest.approx(values.std(), rel=0.2)
        # E k for normals: (b^2 / (b^2 + 2))^(d/2) exp(-shift^2 / (2 (b^2 + 2))).
        scale = (1.5**2 / (1.5**2 + 2)) ** 1.5
        expected = 2 * scale * (1 - math.exp(-1 / (2 * (1.5**2 + 2))))
        assert values.mean() == pytest.approx(expected, abs=4 * values.std() / math.sqrt(150))

    def test_equal_distributions_come_out_on_both_sides_of_zero(self) -> None:
        values = np.array(
            [
                mean_discrepancy(normal(30, 3, seed=s), normal(30, 3, seed=s + 500)).squared
                for s in range(40)
            ]
        )
        assert (values < 0).any()
        assert abs(values.mean()) < 4 * values.std() / math.sqrt(40)

    def test_the_bandwidth_is_that_of_the_private_text(self) -> None:
        private = normal(50, 3, seed=1)
        first = mean_discrepancy(normal(50, 3, seed=2), private)
        second = mean_discrepancy(10 * normal(50, 3, seed=3), private)
        assert first.bandwidth == second.bandwidth

    def test_blocks_do_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, y = normal(60, 4, seed=5), normal(45, 4, seed=6)
        whole = mean_discrepancy(x, y)
        monkeypatch.setattr("flower_privsyn.evaluation.neighbors._BLOCK_MIB", 1e-3)
        parts = mean_discrepancy(x, y)
        assert parts.squared == pytest.approx(whole.squared, abs=1e-12)
        assert parts.standard_error == pytest.approx(whole.standard_error)


class TestMauve:
    def test_equal_sets_have_one(self) -> None:
        rows = normal(100, 6, seed=1)
        found = mauve(rows, rows, features="toy")
        assert found.score == pytest.approx(1.0)
        assert found.smoothed == pytest.approx(1.0)
        assert (found.clusters, found.features) == (10, "toy")

    def test_disjoint_sets_have_next_to_nothing(self) -> None:
        # Unlike directions: features are scaled to unit length.
        first = normal(100, 6, seed=1) * 0.01 + np.eye(6)[0]
        second = normal(100, 6, seed=2) * 0.01 + np.eye(6)[1]
        found = mauve(first, second, features="toy")
        assert found.score < 0.01

    def test_nearer_sets_have_more(self) -> None:
        private = normal(300, 6, seed=1, shift=2.0)
        scores = [
            mauve(normal(300, 6, seed=2, shift=shift), private, features="toy").smoothed
            for shift in (2.0, 1.0, -2.0)
        ]
        assert scores[0] > scores[1] > scores[2]

    def test_area_of_disjoint_histograms(self) -> None:
        """The curve is ((1 - w)^c, w^c): its area is c B(c + 1, c)."""
        exact = 5 * math.gamma(6) * math.gamma(5) / math.gamma(11)
        p, q = np.array([1.0, 0.0]), np.array([0.0, 1.0])
        assert divergence_area(p, q, points=20_001) == pytest.approx(exact, rel=1e-3)

    def test_area_on_a_coarse_curve_by_hand(self) -> None:
        p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
        kl = [
            float(sum(a * math.log(a / r) for a, r in zip(s, (p + q) / 2, strict=True)))
            for s in (q, p)
        ]
        x, y = (math.exp(-5 * value) for value in kl)
        ends = [(1.0, 0.0), *_ends(p, q), (0.0, 1.0)]
        curve = [ends[0], ends[1], (x, y), ends[2], ends[3]]
        area = sum((a[0] - b[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(curve))
        assert divergence_area(p, q, points=3) == pytest.approx(area)

    def test_area_does_not_depend_on_the_order(self) -> None:
        generator = np.random.default_rng(0)
        p, q = generator.dirichlet(np.ones(8), size=2)
        assert divergence_area(p, q) == pytest.approx(divergence_area(q, p))

    def test_the_same_every_time(self) -> None:
        x, y = normal(200, 6, seed=1), normal(150, 6, seed=2, shift=0.5)
        assert mauve(x, y, features="toy", seed=3) == mauve(x, y, features="toy", seed=3)

    def test_all_texts_equal(self) -> None:
        same = np.ones((20, 3))
        assert mauve(same, same, features="toy").score == pytest.approx(1.0)


def _ends(p: npt.NDArray[Any], q: npt.NDArray[Any]) -> list[tuple[float, float]]:
    points = []
    for w in (1e-6, 1 - 1e-6):
        r = w * p + (1 - w) * q
        points.append(
            (
                math.exp(-5 * float((q * np.log(q / r)).sum())),
                math.exp(-5 * float((p * np.log(p / r)).sum())),
            )
        )
    return points


@pytest.mark.parametrize(
    "measure",
    [
        frechet_distance,
        precision_recall,
        mean_discrepancy,
        lambda x, y: mauve(x, y, features="toy"),
    ],
)
class TestAll:
    def test_stamped(self, measure: Any) -> None:
        record = measure(normal(30, 3, seed=1), normal(20, 3, seed=2)).to_dict()
        assert record["stamp"] == STAMP
        assert (record["synthetic_texts"], record["private_texts"]) == (30, 20)

    def test_refuses_what_it_cannot_measure(self, measure: Any) -> None:
        rows = normal(30, 3, seed=1)
        with pytest.raises(ConfigError, match="one embedding model"):
            measure(rows, rows[:, :2])
        with pytest.raises(ConfigError, match="private embeddings must be"):
            measure(rows, rows[:1])
        broken = rows.copy()
        broken[0, 0] = np.nan
        with pytest.raises(ConfigError, match="synthetic embeddings must be finite"):
            measure(broken, rows)
