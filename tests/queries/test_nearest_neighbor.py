"""Votes: exact against brute force, bounded for every input, the same however users are dealt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flower_privsyn.queries import (
    Broadcast,
    Cohort,
    NearestNeighborHistogram,
    Query,
    nearest_candidates,
    nearest_neighbor,
)
from flower_privsyn.queries.candidate_pruning import pays, possible
from flower_privsyn.testing import random_cohort


def brute_force(records: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    difference = records.astype(np.float64)[:, None] - candidates.astype(np.float64)[None]
    return (difference**2).sum(axis=-1).argmin(axis=1)


def unit(generator: np.random.Generator, n: int, d: int) -> np.ndarray:
    rows = generator.standard_normal((n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="class", params=["float32", "pruned"])
def product(request: pytest.FixtureRequest) -> Iterator[None]:
    """On either way, whatever the size and the processor, on which bfloat16 may be emulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest_neighbor, "pays", lambda m: request.param == "pruned")
        yield


@pytest.mark.usefixtures("product")
class TestNearestCandidates:
    def test_near_ties_are_decided_in_double_precision(self) -> None:
        # Candidates that differ by a few units in the last place: float32 products cannot rank
        # them, so a kernel without the second look fails here.
        generator = np.random.default_rng(1)
        base = unit(generator, 1, 384)
        candidates = np.repeat(base, 64, axis=0)
        steps = generator.integers(-3, 4, candidates.shape)
        candidates = np.nextafter(
            candidates, np.float32(2) * np.sign(steps).astype(np.float32)
        ).astype(np.float32)
        records = unit(generator, 200, 384)
        assert np.array_equal(
            nearest_candidates(records, candidates), brute_force(records, candidates)
        )

    def test_equal_candidates_go_to_the_lowest_index(self) -> None:
        candidates = np.eye(4, dtype=np.float32)[[2, 0, 1, 0, 1]]
        records = np.eye(4, dtype=np.float32)[[0, 1, 2]]
        assert nearest_candidates(records, candidates).tolist() == [1, 2, 0]

    @settings(max_examples=200, deadline=None)
    @given(
        hnp.arrays(np.int64, (6, 5), elements=st.integers(-999, 999)),
        hnp.arrays(np.int64, (4, 5), elements=st.integers(-999, 999)),
        st.integers(-30, 50),
    )
    def test_equals_brute_force_at_any_scale(
        self, records: np.ndarray, candidates: np.ndarray, exponent: int
    ) -> None:
        # One scale for both: where records are 1e8 times longer than candidates, this brute force
        # cannot tell the candidates apart.
        left, right = ((x * 2.0**exponent).astype(np.float32) for x in (records, candidates))
        assert np.array_equal(nearest_candidates(left, right), brute_force(left, right))

    def test_far_records_are_told_apart_better_than_by_brute_force(self) -> None:
        records = np.array([[2.0**53, 0.0]], dtype=np.float32)
        candidates = np.array([[0.0, 1.0], [1.0, 1.0]], dtype=np.float32)
        assert nearest_candidates(records, candidates).tolist() == [1]

    def test_largest_floats(self) -> None:
        candidates = np.array([[1.0, 0.0], [-3e38, 3e38]], dtype=np.float32)
        records = np.array([[3e38, 3e38], [-3e38, 3e38], [0.0, 0.0]], dtype=np.float32)
        assert np.array_equal(
            nearest_candidates(records, candidates), brute_force(records, candidates)
        )

    def test_votes_of_a_huge_record_do_not_depend_on_the_other_rows(self) -> None:
        candidates = np.array([[-3, 1, -1], *[[-1, -1, -1]] * 7], dtype=np.float32)
        records = np.full((2, 3), 1e38, dtype=np.float32)
        together = nearest_candidates(records, candidates)
        assert np.array_equal(together[:1], nearest_candidates(records[:1], candidates))
        assert np.array_equal(together, brute_force(records, candidates))


def scattered(generator: np.random.Generator, shape: tuple[int, int], scale: int) -> np.ndarray:
    """Rows near each other or far, some of them equal or 0, some far longer than others."""
    rows = generator.standard_normal((1, shape[1])) * generator.integers(0, 2)
    rows = rows + 10.0 ** generator.uniform(-6, 0) * generator.standard_normal(shape)
    if generator.integers(0, 2):
        rows *= 2.0 ** generator.integers(-20, 20, (shape[0], 1))
    rows[generator.integers(0, shape[0], 2)] = rows[0] * generator.integers(0, 2)
    with np.errstate(over="ignore"):
        return np.nan_to_num((rows * 2.0**scale).astype(np.float32))


class TestCandidatePruning:
    @pytest.mark.parametrize("scale", [-130, -66, -20, 0, 1, 2, 3, 20, 63, 125])
    def test_no_vote_depends_on_it(self, scale: int, monkeypatch: pytest.MonkeyPatch) -> None:
        generator = np.random.default_rng(scale + 200)
        for dimension, m in [(1, 1), (3, 8), (64, 8), (64, 8), (5, 30)] * 4 + [(40, 600)]:
            records = scattered(generator, (200, dimension), scale)
            candidates = scattered(generator, (m, dimension), scale)
            monkeypatch.setattr(nearest_neighbor, "pays", lambda m: False)
            expected = nearest_candidates(records, candidates)
            monkeypatch.setattr(nearest_neighbor, "pays", lambda m: True)
            assert np.array_equal(nearest_candidates(records, candidates), expected)

    def test_rules_out_nearly_all_candidates_of_embeddings(self) -> None:
        left, right = (unit(np.random.default_rng(seed), 600, 65) for seed in (1, 2))
        left[:, -1], right[:, -1] = 1.0, -0.5 * (right[:, :-1] ** 2).sum(axis=1)
        sure, candidates, products = possible(
            left, np.linalg.norm(left, axis=1).astype(np.float64), right
        )
        assert sure.mean() > 0.95
        found = np.isfinite(products)
        assert found.sum() < 0.02 * 600 * 600
        exact = np.take_along_axis(left[sure] @ right.T, candidates, axis=1)
        assert np.allclose(products[found], exact[found], rtol=0, atol=1e-5)

    @pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", "avx2"])
    def test_asks_the_processor_and_loads_nothing(
        self, flag: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True}, raising=False)
        assert pays(1024) is (flag != "avx2")
        assert not pays(256)
        for torch_module in (SimpleNamespace(cpu=SimpleNamespace()), None):  # an old one, and none
            with monkeypatch.context() as patch:
                if torch_module is None:
                    patch.delitem(sys.modules, "torch")
                else:
                    patch.setitem(sys.modules, "torch", torch_module)
                assert not pays(1024)


class TestHistogram:
    def test_paper_setting_equals_bincount(self) -> None:
        cohort = random_cohort(num_users=300, max_records=8, dimension=64, seed=3)
        candidates = unit(np.random.default_rng(4), 128, 64)
        votes = NearestNeighborHistogram(max_samples=8).answer(cohort, {"candidates": candidates})
        assert np.array_equal(
            votes, np.bincount(brute_force(cohort.records, candidates), minlength=128)
        )

    def test_shares_of_a_user_add_up_to_one_whoever_wrote_how_much(self) -> None:
        query = NearestNeighborHistogram(max_samples=4, clip="share")
        axes = np.eye(3, dtype=np.float32)
        records, owners = axes[[0, 0, 1, 2, 0, 0, 1]], np.array([0, 0, 0, 0, 0, 1, 3])
        cohort = Cohort(records, owners, 4)
        shares = query.contribution(cohort, {"candidates": axes})
        # The fifth record of the first user is beyond the cap; the third has none.
        expected = [[0.5, 0.25, 0.25], [1, 0, 0], [0, 0, 0], [0, 1, 0]]
        assert np.allclose(shares, expected, atol=1e-8)
        assert 0.999 <= np.linalg.norm(shares, axis=1).max() <= query.clip_norm == 1.0


class TestClippingCannotBeOverridden:
    @pytest.mark.parametrize(
        "method",
        [
            *("contribution", "answer_bound", "_clip", "answer"),
        ],
    )
    def test_subclass_is_refused(self, method: str) -> None:
        with pytest.raises(TypeError, match=method):
            type("Loose", (NearestNeighborHistogram,), {method: lambda self: None})
        mixin = type("Mixin", (), {method: lambda self: None})
        with pytest.raises(TypeError, match=method):
            type("Loose", (mixin, NearestNeighborHistogram), {})

    def test_a_subclass_of_another_package_is_clipped_by_its_own_rule(self) -> None:
        """Else its users would send what the bundled question bounds, under a smaller noise."""

        class OneVote(NearestNeighborHistogram):
            name = "one_vote"

            @property
            def clip_norm(self) -> float:
                return 1.0

        class NoVote(OneVote):
            name = "no_vote"

            def statistic(self, cohort: Cohort, broadcast: Broadcast) -> np.ndarray:
                return np.zeros((cohort.num_users, self.answer_length(broadcast)))

        broadcast = {"candidates": np.eye(4, dtype=np.float32)}
        cohort = Cohort(np.eye(4, dtype=np.float32)[[0] * 8], np.zeros(8, dtype=np.int64), 1)
        assert NearestNeighborHistogram().answer(cohort, broadcast).tolist() == [8, 0, 0, 0]
        for query, answered in ((OneVote(), [1, 0, 0, 0]), (NoVote(), [0, 0, 0, 0])):
            total = query.answer(cohort, broadcast)
            np.testing.assert_allclose(total, answered, atol=1e-8)
            assert np.linalg.norm(total) <= query.clip_norm

    def test_cohort_rejects_unsorted_owners(self) -> None:
        with pytest.raises(ValueError, match="owners"):
            Cohort(np.zeros((2, 1), np.float32), np.array([1, 0]), 2)

    def test_a_statistic_of_nan_contributes_nothing(self) -> None:
        class Broken(Query):
            name = "broken"

            @property
            def clip_norm(self) -> float:
                return 1.0

            def statistic(self, cohort: Cohort, broadcast: Broadcast) -> np.ndarray:
                return np.full((cohort.num_users, self.answer_length(broadcast)), np.nan)

        cohort = random_cohort(num_users=3, max_records=2, dimension=2, seed=0)
        assert not Broken().answer(cohort, {"candidates": np.eye(2, dtype=np.float32)}).any()
