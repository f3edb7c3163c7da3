"""Model deltas: one bound over update and bit for every input, noise split as it is stated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flower_privsyn.privacy import GaussianMechanism, InsecureRandom
from flower_privsyn.queries import Cohort, ModelDelta
from flower_privsyn.queries.model_delta import next_clip_norm

SIZE = 40
BROADCAST = {"parameters": np.zeros(SIZE, dtype=np.float32)}


def cohort(updates: Any) -> Cohort:
    """Users with one update each."""
    rows = np.asarray(updates, dtype=np.float32)
    return Cohort(rows, np.arange(len(rows)), len(rows))


def random_updates(users: int, *, scale: float, seed: int = 0) -> np.ndarray:
    """Updates of log-normal length around `scale`."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal((users, SIZE))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lengths = scale * np.exp(generator.standard_normal(users))
    return (directions * lengths[:, None]).astype(np.float32)


class TestBound:
    def test_an_update_within_the_bound_is_left_as_it_is(self) -> None:
        updates = random_updates(20, scale=0.01)
        for clip, share in ((0.5, 0.0), (0.5, 0.3), (100.0, 0.0)):
            query = ModelDelta(clip_to=clip, bit_share=share)
            rows = query.contribution(cohort(updates), BROADCAST)[:, :SIZE] * query.unit
            assert np.abs(rows - updates).max() <= 2.0**-30 + 1e-8 * clip

    def test_a_small_clip_norm_keeps_its_precision(self) -> None:
        # 2^-30 in parameters would be a thousandth of a coordinate here.
        query = ModelDelta(clip_to=1e-6)
        updates = random_updates(5, scale=0.1)
        expected = updates * (1e-6 / np.linalg.norm(updates, axis=1, keepdims=True))
        got = query.contribution(cohort(updates), BROADCAST) * query.unit
        assert np.abs(got - expected).max() < 1e-6 * 1e-7

    @pytest.mark.parametrize("clip", [0.003, 1.0, 7.5])
    @pytest.mark.parametrize("size", [1, 2**16 - 1, 2**17 + 3])
    def test_a_wide_update_is_clipped_alone_and_beside_others_to_the_same_bits(
        self, size: int, clip: float
    ) -> None:
        generator = np.random.default_rng(size)
        updates = generator.standard_normal((7, size)).astype(np.float32) / np.float32(size**0.5)
        updates *= np.float32([clip * 1e-3, clip / 2, clip, 3 * clip, 1e30, 0, 1])[:, None]
        updates[5, 0] = clip  # a length at the bound itself, of a whole number if the bound is one
        updates[6, -1] = np.inf  # counts for nothing
        query, asked = ModelDelta(clip_to=clip), {"parameters": np.zeros(size, np.float32)}
        before = updates.copy()
        rows = query.contribution(cohort(updates), asked)
        assert np.array_equal(query.answer(cohort(updates), asked), rows.sum(axis=0))
        assert np.array_equal(updates, before)
        for user in range(7):
            alone = query.answer(cohort(updates[user : user + 1]), asked)
            assert np.array_equal(alone, rows[user])
            assert np.linalg.norm(rows[user]) <= query.clip_norm
        longest = np.linalg.norm(query.answer(cohort(updates[3:4]), asked))
        if size > 1:
            assert 0.999 * query.clip_norm <= longest

    @pytest.mark.parametrize(
        ("size", "asked"), [(1, 1000), (999, 1000), (1001, 1000), (2**16 + 1, 2**16)]
    )
    def test_an_update_of_another_length_adds_nothing(self, size: int, asked: int) -> None:
        """One number would be added to all, and a user count as many times the clip norm."""
        with pytest.raises(ValueError, match="expected"):
            ModelDelta(clip_to=1.0).answer(
                cohort(np.ones((1, size))), {"parameters": np.zeros(asked, np.float32)}
            )

    def test_only_one_update_of_a_user_counts(self) -> None:
        query = ModelDelta(clip_to=1.0)
        many = Cohort(
            np.ones((3, SIZE), dtype=np.float32), np.zeros(3, dtype=np.int64), num_users=1
        )
        one = cohort(np.ones((1, SIZE)))
        assert np.array_equal(query.answer(many, BROADCAST), query.answer(one, BROADCAST))


class TestUsersWithoutAnUpdate:
    @pytest.mark.parametrize("share", [0.0, 0.2])
    def test_answer_the_zero_vector(self, share: float) -> None:
        updates = np.ones((3, SIZE), dtype=np.float32)
        updates[0, 5] = np.nan
        updates[1, 0] = np.inf
        silent = Cohort(updates, np.array([0, 1, 3]), num_users=5)
        rows = ModelDelta(clip_to=1.0, bit_share=share).contribution(silent, BROADCAST)
        assert rows.any(axis=1).tolist() == [False, False, False, True, False]

    def test_an_update_of_zero_is_within_the_bound(self) -> None:
        query = ModelDelta(clip_to=1.0, bit_share=0.2)
        rows = query.contribution(cohort(np.zeros((1, SIZE))), BROADCAST)
        assert not rows[0, :-1].any()
        assert rows[0, -1] == pytest.approx(0.2 * query.clip_norm)


class TestAdaptiveClipping:
    def test_released_noise_is_the_split(self) -> None:
        users, multiplier = 400, 2.0
        query = ModelDelta(clip_to=0.05, bit_share=0.25)
        mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=query.clip_norm)
        random = InsecureRandom(3)
        total = query.answer(cohort(random_updates(users, scale=0.05)), BROADCAST)
        exact = query.fraction_within(total, users)
        released = mechanism.release(np.tile(total, 20_000), random=random).reshape(20_000, -1)
        means = [query.mean_update(noisy, users)[:3] for noisy in released]
        fractions = [query.fraction_within(noisy, users) for noisy in released]
        # Andrew et al. 2021, theorem 1: z^-2 = z_delta^-2 + (2 sigma_b)^-2.
        updates, bits = multiplier / math.sqrt(1 - 0.25**2), multiplier / (2 * 0.25)
        assert multiplier == pytest.approx((updates**-2 + (2 * bits) ** -2) ** -0.5)
        assert np.std(means, axis=0) == pytest.approx(updates * 0.05 / users, rel=0.02)
        assert np.std(fractions) == pytest.approx(bits / users, rel=0.02)
        assert np.mean(fractions) == pytest.approx(exact, abs=4 * bits / users / math.sqrt(20_000))

    def test_the_fraction_is_exact_without_noise(self) -> None:
        updates = random_updates(200, scale=0.3)
        lengths = np.linalg.norm(updates.astype(np.float64), axis=1)
        for clip in (0.1, 0.3, 2.0):
            query = ModelDelta(clip_to=clip, bit_share=0.3)
            total = query.answer(cohort(updates), BROADCAST)
            within = float((lengths <= clip).mean())
            assert query.fraction_within(total, 200) == pytest.approx(within, abs=1e-6)

    @pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
    @pytest.mark.parametrize("first", [1e-3, 30.0])
    def test_the_clip_norm_finds_the_quantile(self, quantile: float, first: float) -> None:
        updates = cohort(random_updates(500, scale=0.3))
        clip = first
        for _ in range(400):
            query = ModelDelta(clip_to=clip, bit_share=0.2)
            fraction = query.fraction_within(query.answer(updates, BROADCAST), 500)
            clip = next_clip_norm(clip, fraction, quantile=quantile, learning_rate=0.2)
        lengths = np.linalg.norm(updates.records.astype(np.float64), axis=1)
        assert (lengths <= clip).mean() == pytest.approx(quantile, abs=0.01)
