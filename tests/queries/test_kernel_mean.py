"""Kernel means: the features' law and bits, unbiased scores under noise, bounds for every input."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from flower_privsyn.errors import ConfigError
from flower_privsyn.privacy import GaussianMechanism, InsecureRandom, NeighboringRelation
from flower_privsyn.queries import (
    QUERIES,
    Cohort,
    KernelMean,
    features,
    kernel_mean,
    mean_features,
    mean_scores,
    median_bandwidth,
    squared_mmd,
    witness_scores,
)
from flower_privsyn.testing import check_query, random_cohort

#: `frequencies(num_features=128, dimension=48, bandwidth=0.75, seed=7)`.
FROZEN_FIRST = ["0x1.e390180000000p-1", "-0x1.09f3ba0000000p-1", "-0x1.042ff40000000p+1"]
FROZEN_DIGEST = "05c828706db8748e31eb65439564ed4c4d2f6c1589c044d3c0925ce9f9b8eddb"


def unit(generator: np.random.Generator, n: int, d: int) -> np.ndarray:
    rows = generator.standard_normal((n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def weights(query: KernelMean, dimension: int) -> np.ndarray:
    return kernel_mean.frequencies(
        num_features=query.num_features,
        dimension=dimension,
        bandwidth=query.bandwidth,
        seed=query.feature_seed,
    ).astype(np.float64)


def features_by_definition(embeddings: np.ndarray, query: KernelMean) -> np.ndarray:
    """One row at a time, in double precision."""
    w = weights(query, embeddings.shape[1])
    a = query.embedding_weight
    rows = []
    for x in embeddings.astype(np.float64):
        phi = np.sqrt(2 / query.num_features) * np.concatenate((np.cos(w @ x), np.sin(w @ x)))
        norm = np.linalg.norm(x)
        own = x / norm if norm else x
        rows.append(np.concatenate((np.sqrt(1 - a) * phi, np.sqrt(a) * own)) if a else phi)
    return np.array(rows)


def mean_by_definition(cohort: Cohort, query: KernelMean) -> np.ndarray:
    """(num_users, D')."""
    phi = features_by_definition(cohort.records, query)
    return np.array(
        [
            phi[cohort.owners == user].mean(axis=0)
            if (cohort.owners == user).any()
            else np.zeros(phi.shape[1])
            for user in range(cohort.num_users)
        ]
    )


class TestFrequencies:
    def test_are_the_same_bits_everywhere(self) -> None:
        # Frozen: users and server draw these independently, possibly years apart.
        drawn = kernel_mean.frequencies(num_features=128, dimension=48, bandwidth=0.75, seed=7)
        assert drawn.dtype == np.float32
        assert drawn.shape == (64, 48)
        assert [float(x).hex() for x in drawn[0, :3]] == FROZEN_FIRST
        assert hashlib.sha256(drawn.astype("<f4").tobytes()).hexdigest() == FROZEN_DIGEST

    def test_are_standard_normal_over_the_bandwidth(self) -> None:
        drawn = kernel_mean.frequencies(num_features=4096, dimension=64, bandwidth=0.5, seed=1)
        values = drawn.astype(np.float64).reshape(-1) * 0.5
        assert stats.kstest(values, "norm").pvalue > 1e-6
        # The same test has the power to reject a scale that is five per cent off.
        assert stats.kstest(values * 1.05, "norm").pvalue < 1e-6
        rows = values.reshape(2048, 64)
        correlation = np.corrcoef(rows.T) - np.eye(64)
        assert np.abs(correlation).max() < 6 / np.sqrt(2048)
        # Both halves of a polar pair, and neighbours in the stream.
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / np.sqrt(len(values))
        squares = values**2
        assert abs(np.corrcoef(squares[:-1], squares[1:])[0, 1]) < 5 / np.sqrt(len(values))

    def test_logarithm(self) -> None:
        values = np.concatenate(
            (np.random.default_rng(0).random(10_000), 2.0 ** -np.arange(1.0, 105.0))
        )
        assert np.allclose(kernel_mean._log(values), np.log(values), rtol=4e-16, atol=4e-16)

    def test_fewer_are_the_first_ones_and_seeds_differ(self) -> None:
        many = kernel_mean.frequencies(num_features=64, dimension=9, bandwidth=1.0, seed=3)
        few = kernel_mean.frequencies(num_features=16, dimension=9, bandwidth=1.0, seed=3)
        other = kernel_mean.frequencies(num_features=16, dimension=9, bandwidth=1.0, seed=4)
        assert np.array_equal(many[:8], few)
        assert not np.isclose(few, other).any()

    def test_cannot_be_overwritten(self) -> None:
        drawn = kernel_mean.frequencies(num_features=16, dimension=4, bandwidth=1.0, seed=3)
        with pytest.raises(ValueError, match="read-only"):
            drawn[0, 0] = 1.0


class TestFeatures:
    @pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
    def test_follow_the_definition(self, weight: float) -> None:
        generator = np.random.default_rng(1)
        query = KernelMean(num_features=200, bandwidth=0.8, feature_seed=5, embedding_weight=weight)
        embeddings = 2 * unit(generator, 30, 12)
        embeddings[3] = 0
        result = features(embeddings, query=query)
        assert result.dtype == np.float32
        assert result.shape == (30, query.sketch_length(12))
        assert np.allclose(result, features_by_definition(embeddings, query), atol=1e-6)
        norms = np.linalg.norm(np.delete(result, 3, axis=0).astype(np.float64), axis=1)
        assert np.allclose(norms, 1.0, atol=1e-6)
        assert np.linalg.norm(result[3]) <= 1 + 1e-6

    def test_scalar_products_approach_the_kernel_like_the_root_of_d(self) -> None:
        generator = np.random.default_rng(2)
        bandwidth = 0.7
        left, right = unit(generator, 400, 16), unit(generator, 400, 16)
        right[:200] = left[:200] + 0.4 * right[:200]
        squared = ((left - right).astype(np.float64) ** 2).sum(axis=1) / bandwidth**2
        kernel = np.exp(-squared / 2)
        # Var cos(Z) for Z ~ N(0, s) is (1 - e^-s)^2 / 2, and D / 2 of them are averaged.
        variance = ((1 - np.exp(-squared)) ** 2).mean()
        for num_features in (64, 512, 4096):
            errors = []
            for seed in range(12):
                query = KernelMean(
                    num_features=num_features, bandwidth=bandwidth, feature_seed=seed
                )
                products = np.einsum(
                    "nk,nk->n",
                    features(left, query=query).astype(np.float64),
                    features(right, query=query),
                )
                errors.append(products - kernel)
            rms = np.sqrt(np.mean(np.square(errors)))
            assert rms == pytest.approx(np.sqrt(variance / num_features), rel=0.1)

    def test_a_mixture_of_kernels(self) -> None:
        generator = np.random.default_rng(3)
        x = 3 * unit(generator, 2, 8)
        x[1] += x[0]
        query = KernelMean(num_features=2**16, bandwidth=2.0, embedding_weight=0.4)
        phi = features(x, query=query).astype(np.float64)
        gauss = np.exp(-((x[0] - x[1]) ** 2).sum() / (2 * 2.0**2))
        cosine = x[0] @ x[1] / np.linalg.norm(x[0]) / np.linalg.norm(x[1])
        assert phi[0] @ phi[1] == pytest.approx(0.6 * gauss + 0.4 * cosine, abs=0.01)

    def test_do_not_depend_on_the_rows_beside_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        query = KernelMean(num_features=512, embedding_weight=0.2)
        embeddings = unit(np.random.default_rng(4), 300, 48)
        together = features(embeddings, query=query)
        monkeypatch.setattr(kernel_mean, "_BLOCK_ROWS", 7)
        assert np.array_equal(features(embeddings, query=query), together)
        alone = np.concatenate([features(row[None], query=query) for row in embeddings])
        assert np.array_equal(alone, together)

    def test_a_row_beyond_the_projection_counts_for_nothing(self) -> None:
        query = KernelMean(num_features=16, bandwidth=1e-3)
        rows = np.array([[3e38, 3e38], [1.0, 0.0]], dtype=np.float32)
        with np.errstate(all="raise", under="ignore"):
            result = features(rows, query=query)
        assert not result[0].any()
        assert np.linalg.norm(result[1]) == pytest.approx(1.0, abs=1e-6)


class TestTheQuery:
    @pytest.mark.parametrize("weight", [0.0, 0.25])
    def test_contributions_are_mean_features(self, weight: float) -> None:
        cohort = random_cohort(num_users=30, max_records=5, dimension=10, seed=5, empty=0.2)
        query = KernelMean(num_features=64, bandwidth=0.9, embedding_weight=weight)
        contributions = query.contribution(cohort, query.broadcast(10))
        expected = mean_by_definition(cohort, query)
        assert np.allclose(contributions, expected, atol=1e-6)
        total = query.answer(cohort, query.broadcast(10))
        assert np.allclose(total, expected.sum(axis=0), atol=1e-5)
        assert len(total) == query.answer_length(query.broadcast(10))

    def test_holds_what_every_query_must_hold(self) -> None:
        cohort = random_cohort(num_users=90, max_records=6, dimension=24, seed=6)
        query = KernelMean(num_features=256, embedding_weight=0.1)
        check_query(query, cohort, query.broadcast(24), tolerance=1e-9)

    def test_does_not_depend_on_how_users_are_dealt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cohort = random_cohort(num_users=60, max_records=9, dimension=16, seed=7, empty=0.2)
        query = KernelMean(num_features=128)
        together = query.answer(cohort, query.broadcast(16))
        for users in (1, 7):
            dealt = sum(query.answer(b, query.broadcast(16)) for b in cohort.blocks(users))
            assert np.array_equal(dealt, together)
        # Cutting one user's records in two adds them in another order.
        monkeypatch.setattr("flower_privsyn.queries.user_means._BLOCK_RECORDS", 4)
        assert np.allclose(query.answer(cohort, query.broadcast(16)), together, atol=1e-8)

    def test_a_user_weighs_one_however_much_is_written(self) -> None:
        x = unit(np.random.default_rng(8), 2, 6)
        query = KernelMean(num_features=32)
        once = query.answer(Cohort(x, np.array([0, 1]), 2), query.broadcast(6))
        often = query.answer(Cohort(x[[0, 1, 1, 1]], np.array([0, 1, 1, 1]), 2), query.broadcast(6))
        assert np.allclose(once, often, atol=1e-8)

    def test_the_bound_is_attained(self) -> None:
        query = KernelMean(num_features=64, embedding_weight=0.5)
        cohort = Cohort(unit(np.random.default_rng(9), 1, 6), np.array([0]), 1)
        norm = np.linalg.norm(query.answer(cohort, query.broadcast(6)))
        assert 0.999 <= norm <= query.sensitivity(NeighboringRelation.ZERO_OUT) == 1.0
        assert query.sensitivity(NeighboringRelation.REPLACE_ONE) == 2.0

    def test_the_cap_keeps_the_first_records(self) -> None:
        cohort = random_cohort(num_users=8, max_records=6, dimension=5, seed=10)
        capped = KernelMean(num_features=16, max_samples=2)
        every = KernelMean(num_features=16)
        answer = capped.answer(cohort, capped.broadcast(5))
        assert np.array_equal(answer, every.answer(cohort.cap(2), every.broadcast(5)))
        assert not np.allclose(answer, every.answer(cohort, every.broadcast(5)))

    @settings(max_examples=100, deadline=None)
    @given(data=st.data(), weight=st.sampled_from([0.0, 0.5, 1.0]))
    def test_any_client_input_is_bounded(self, data: st.DataObject, weight: float) -> None:
        values = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from(
            [3e38, -3e38, 1e-45, 0.0]
        )
        n = data.draw(st.integers(0, 9))
        records = data.draw(hnp.arrays(np.float32, (n, 3), elements=values))
        owners = np.sort(data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, 2))))
        query = KernelMean(num_features=8, bandwidth=0.01, embedding_weight=weight)
        cohort = Cohort(records, owners, 3)
        contributions = query.contribution(cohort, query.broadcast(3))
        assert np.isfinite(contributions).all()
        assert np.linalg.norm(contributions, axis=1).max() <= query.clip_norm
        without = query.answer(cohort.select(np.array([True, False, True])), query.broadcast(3))
        moved = np.linalg.norm(query.answer(cohort, query.broadcast(3)) - without)
        assert moved <= query.sensitivity(NeighboringRelation.ZERO_OUT)

    def test_users_without_text_and_empty_cohorts(self) -> None:
        query = KernelMean(num_features=8)
        nobody = Cohort(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), 0)
        silent = Cohort(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), 4)
        assert not query.answer(nobody, query.broadcast(3)).any()
        assert not query.answer(silent, query.broadcast(3)).any()
        assert query.contribution(silent, query.broadcast(3)).shape == (4, 8)

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"num_features": 7}, "num-features must be an even whole number"),
            ({"num_features": 0}, "num-features"),
            ({"num_features": 8.0}, "num-features"),
            ({"num_features": 2**16 + 2}, "num-features"),
            ({"bandwidth": 0.0}, "bandwidth"),
            ({"bandwidth": float("nan")}, "bandwidth"),
            ({"bandwidth": "1"}, "bandwidth"),
            ({"feature_seed": -1}, "feature-seed"),
            ({"feature_seed": 2**63}, "feature-seed"),
            ({"embedding_weight": 1.1}, "embedding-weight"),
            ({"embedding_weight": -0.1}, "embedding-weight"),
            ({"max_samples": -1}, "max-samples"),
        ],
    )
    def test_bad_parameters_are_named(self, arguments: dict[str, object], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            KernelMean(**arguments)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("broadcast", "named"),
        [
            ({}, "dimension"),
            ({"candidates": np.eye(3)}, "candidates"),
            ({"dimension": np.array([4])}, "must be 3, got 4"),
            ({"dimension": np.array([3.0])}, "one integer"),
            ({"dimension": np.array([3, 3])}, "one integer"),
        ],
    )
    def test_bad_broadcasts_are_refused(self, broadcast: dict[str, np.ndarray], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            KernelMean().check(broadcast, dimension=3)

    def test_travels(self) -> None:
        query = KernelMean(num_features=10, bandwidth=0.3, feature_seed=2**62, max_samples=2)
        assert KernelMean.from_wire(query.to_wire()) == query
        query.check(query.broadcast(3), dimension=3)
        assert KernelMean in QUERIES


class TestScores:
    query = KernelMean(num_features=64, bandwidth=0.8, feature_seed=11, embedding_weight=0.2)

    def setup_method(self) -> None:
        generator = np.random.default_rng(12)
        self.cohort = random_cohort(num_users=40, max_records=4, dimension=8, seed=13, empty=0.1)
        self.candidates = unit(generator, 25, 8)
        self.population = unit(generator, 15, 8)
        self.total = self.query.answer(self.cohort, self.query.broadcast(8))
        self.users = mean_by_definition(self.cohort, self.query).mean(axis=0)
        self.phi = features_by_definition(self.candidates, self.query)
        self.covered = features_by_definition(self.population, self.query).mean(axis=0)

    def release(self, multiplier: float, seed: int) -> np.ndarray:
        mechanism = GaussianMechanism(
            noise_multiplier=multiplier,
            l2_sensitivity=self.query.sensitivity(NeighboringRelation.ZERO_OUT),
        )
        return mechanism.release(self.total, random=InsecureRandom(seed))

    def test_equal_the_exact_kernel_means_without_noise(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kernel_mean, "_BLOCK_ROWS", 4)
        mean = mean_scores(self.candidates, self.total, 40, query=self.query)
        assert np.allclose(mean, self.phi @ self.users, atol=1e-6)
        witness = witness_scores(
            self.candidates, self.total, 40.0, self.population, query=self.query
        )
        assert np.allclose(witness, self.phi @ (self.users - self.covered), atol=1e-6)
        squared = squared_mmd(self.total, 40, self.population, 0.0, query=self.query)
        assert squared == pytest.approx(((self.users - self.covered) ** 2).sum(), abs=1e-6)
        assert np.allclose(
            mean_features(self.population, query=self.query), self.covered, atol=1e-6
        )

    def test_are_unbiased_and_as_noisy_as_said(self) -> None:
        multiplier, draws = 6.0, 3000
        mean, witness, squared = [], [], []
        for seed in range(draws):
            noisy = self.release(multiplier, seed)
            mean.append(mean_scores(self.candidates[:3], noisy, 40, query=self.query))
            witness.append(
                witness_scores(
                    self.candidates[:3], noisy, 40, self.population[:5], query=self.query
                )
            )
            squared.append(squared_mmd(noisy, 40, self.population, multiplier, query=self.query))
        deviation = multiplier / 40  # times |phi| = 1
        error = 5 * deviation / np.sqrt(draws)
        covered = features_by_definition(self.population[:5], self.query).mean(axis=0)
        assert np.abs(np.mean(mean, axis=0) - self.phi[:3] @ self.users).max() < error
        expected = self.phi[:3] @ (self.users - covered)
        assert np.abs(np.mean(witness, axis=0) - expected).max() < error
        assert np.allclose(np.std(mean, axis=0), deviation, rtol=0.07)
        exact = ((self.users - self.covered) ** 2).sum()
        standard_error = np.std(squared) / np.sqrt(draws)
        assert abs(np.mean(squared) - exact) < 5 * standard_error
        # What is subtracted is far larger than what the test can tell apart.
        assert len(self.total) * deviation**2 > 50 * standard_error

    def test_the_witness_stops_rewarding_what_is_covered(self) -> None:
        generator = np.random.default_rng(14)
        topics = unit(generator, 2, 8)
        texts = np.concatenate(
            [topics[[0]] + 0.1 * unit(generator, 70, 8), topics[[1]] + 0.1 * unit(generator, 30, 8)]
        )
        cohort = Cohort(texts, np.arange(100), 100)
        query = KernelMean(num_features=1024, bandwidth=0.5)
        total = query.answer(cohort, query.broadcast(8))
        population = topics[[0]] + 0.1 * unit(generator, 50, 8)
        mean = mean_scores(topics, total, 100, query=query)
        witness = witness_scores(topics, total, 100, population, query=query)
        assert mean[0] > mean[1]
        assert witness[1] > 0 > witness[0]
        before = squared_mmd(total, 100, population, 0.0, query=query)
        mended = np.concatenate((population, topics[[1]] + 0.1 * unit(generator, 20, 8)))
        assert squared_mmd(total, 100, mended, 0.0, query=query) < 0.2 * before

    def test_the_order_does_not_depend_on_the_number_of_users(self) -> None:
        noisy = self.release(3.0, 0)
        scores = [
            mean_scores(self.candidates, noisy, n, query=self.query) for n in (40, 41.7, 1e-3)
        ]
        assert np.allclose(scores[0] * 40, scores[1] * 41.7)
        assert np.array_equal(np.argsort(scores[0]), np.argsort(scores[2]))

    def test_unusable_arguments_are_named(self) -> None:
        with pytest.raises(ValueError, match=r"release must be \(72,\)"):
            mean_scores(self.candidates, self.total[:-1], 40, query=self.query)
        with pytest.raises(ValueError, match="finite"):
            mean_scores(self.candidates, self.total * np.nan, 40, query=self.query)
        for wrong in (0, -1.0, float("inf")):
            with pytest.raises(ValueError, match="num_users"):
                mean_scores(self.candidates, self.total, wrong, query=self.query)
        with pytest.raises(ValueError, match="noise_std"):
            squared_mmd(self.total, 40, self.population, -1.0, query=self.query)
        with pytest.raises(ValueError, match="p >= 1"):
            witness_scores(self.candidates, self.total, 40, self.population[:0], query=self.query)
        with pytest.raises(ValueError, match=r"\(n, d\)"):
            features(self.candidates[0], query=self.query)


class TestBandwidth:
    def test_is_the_median_distance(self) -> None:
        rows = 5 + unit(np.random.default_rng(15), 60, 7)
        distances = [
            np.linalg.norm(rows[i].astype(np.float64) - rows[j])
            for i in range(60)
            for j in range(i)
        ]
        assert median_bandwidth(rows) == pytest.approx(np.median(distances), rel=1e-6)

    def test_draws_rows_by_seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = unit(np.random.default_rng(16), 300, 7)
        whole = median_bandwidth(rows)
        monkeypatch.setattr(kernel_mean, "_MEDIAN_ROWS", 80)
        drawn = [median_bandwidth(rows, seed=seed) for seed in (0, 0, 1)]
        assert drawn[0] == drawn[1] != drawn[2]
        assert drawn[0] == pytest.approx(whole, rel=0.05)

    @pytest.mark.parametrize(
        "rows", [np.zeros((1, 3)), np.zeros(3), np.ones((9, 3)), np.full((9, 3), np.nan)]
    )
    def test_unusable_embeddings(self, rows: np.ndarray) -> None:
        with pytest.raises(ValueError, match="embeddings"):
            median_bandwidth(rows)
