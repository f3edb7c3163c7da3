"""Moments: the definition, norms that are attained and never passed, every bit, an audit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flower_privsyn.queries import Cohort, Moments, moments
from flower_privsyn.testing import random_cohort

K, D = 4, 9
GENERATOR = np.random.default_rng(0)
BASIS = np.linalg.qr(GENERATOR.standard_normal((D, K)))[0].T.astype(np.float32)
CENTRE = (0.1 * GENERATOR.standard_normal(K)).astype(np.float32)
SHIFT = np.array([0.2, -0.1, 0.0, 0.05], dtype=np.float32)

MIXTURES = [
    Moments(radius=0.6),
    Moments(radius=0.3, covariance_share=0.2, count_share=0.1),
    Moments(radius=0.5, covariance_share=0.0),
    Moments(radius=5.0, covariance_share=1.0),
    Moments(radius=0.4, unit="record", max_samples=3, count_share=0.2),
]
mixtures = pytest.mark.parametrize("query", MIXTURES, ids=lambda query: str(query.to_wire()))


def clipped(point: np.ndarray, radius: float) -> np.ndarray:
    return point / max(1.0, float(np.linalg.norm(point)) / radius)


def vector_by_definition(record: np.ndarray, query: Moments, shift: np.ndarray) -> np.ndarray:
    y = clipped(BASIS.astype(float) @ record.astype(float) - CENTRE, query.radius)
    if shift.any():
        y = clipped(y - shift, query.radius)
    y = y / query.radius
    w0, w1, w2 = query.weights
    triangle = [
        y[i] * y[j] * (1.0 if i == j else math.sqrt(2)) for i in range(K) for j in range(i, K)
    ]
    blocks = ([w0], w1 * y, w2 * np.array(triangle))
    return np.concatenate([block for block, w in zip(blocks, query.weights, strict=True) if w > 0])


def answers_by_definition(cohort: Cohort, query: Moments, shift: np.ndarray) -> np.ndarray:
    rows = []
    for user in range(cohort.num_users):
        own = cohort.records[cohort.owners == user]
        own = own[: query.max_samples] if query.max_samples else own
        vectors = [vector_by_definition(record, query, shift) for record in own]
        total = np.sum(vectors, axis=0) if vectors else np.zeros(query.answer_length(asked(query)))
        rows.append(total if query.unit == "record" else total / max(1, len(vectors)))
    return np.array(rows)


def asked(query: Moments, *, shift: bool = False) -> dict[str, np.ndarray]:
    return query.broadcast(CENTRE, BASIS, shift=SHIFT if shift else None)


def alone(points: np.ndarray, query: Moments) -> np.ndarray:
    """The answer of one user whose records are these, in coordinates of their own."""
    records = np.atleast_2d(points).astype(np.float32)
    cohort = Cohort(records, np.zeros(len(records), np.int64), 1)
    return query.answer(cohort, query.broadcast(np.zeros(records.shape[1])))


class TestTheAnswer:
    @mixtures
    @pytest.mark.parametrize("shift", [False, True])
    def test_follows_the_definition(self, query: Moments, shift: bool) -> None:
        cohort = random_cohort(num_users=25, max_records=5, dimension=D, seed=1, empty=0.2)
        asks = asked(query, shift=shift)
        expected = answers_by_definition(cohort, query, SHIFT if shift else np.zeros(K))
        assert np.allclose(query.contribution(cohort, asks), expected, atol=1e-7)
        assert np.allclose(query.answer(cohort, asks), expected.sum(axis=0), atol=1e-6)

    def test_without_a_basis_is_in_the_coordinates_of_the_embeddings(self) -> None:
        query = Moments(radius=0.7)
        cohort = random_cohort(num_users=20, max_records=3, dimension=K, seed=3)
        projected = query.answer(cohort, query.broadcast(CENTRE, np.eye(K)))
        assert np.allclose(query.answer(cohort, query.broadcast(CENTRE)), projected, atol=1e-7)

    def test_the_triangle_comes_back(self) -> None:
        y = np.array([0.3, -0.2, 0.5])
        answer = alone(y, Moments(covariance_share=1.0))
        assert np.allclose(moments.symmetric(answer), np.outer(y, y), atol=1e-7)
        assert np.linalg.norm(answer) == pytest.approx(y @ y, abs=1e-7)


class TestTheBound:
    @pytest.mark.parametrize(
        ("share", "cosine", "moves"),
        # PRIVACY: 2 c / n for the mean, sqrt(2) c^2 / n for second moments; both in one vector 1.5.
        [(0.0, -1.0, 2.0), (1.0, 0.0, math.sqrt(2)), (0.5, -0.5, 1.5)],
    )
    def test_when_a_record_is_replaced(self, share: float, cosine: float, moves: float) -> None:
        query = Moments(covariance_share=share, unit="record", max_samples=1)
        one = np.array([1.0, 0.0, 0.0])
        other = np.array([cosine, math.sqrt(1 - cosine**2), 0.0])
        moved = np.linalg.norm(alone(2 * one, query) - alone(2 * other, query))
        assert 0.999 * moves <= moved <= moves
        assert moves <= 2.0 * query.clip_norm == 2.0
        generator = np.random.default_rng(6)
        pairs = generator.standard_normal((200, 2, 3)) * generator.exponential(2, (200, 2, 1))
        found = [np.linalg.norm(alone(a, query) - alone(b, query)) for a, b in pairs]
        assert max(found) <= moves
