"""Mean similarities: the authors' formula, the algebraic sum, the span, bounds for every input."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flower_privsyn.queries import Cohort, MeanSimilarity, expand_scores
from flower_privsyn.testing import random_cohort

CENTRES = ("prompt", "all", "none")
SPACES = ("candidates", "span")

#: How far scores may be off, of their length: those of all candidates are made of coarse steps.
TOLERANCE = {"candidates": 1e-3, "span": 1e-5}

#: Digests of contributions by their scale, computed on an AVX-512 machine; IEEE 754 gives them on
#: any.
FROZEN_ANSWERS = {
    "clip": "e68636667d15d686d2b279726452e85a740c46d3bfaf77554ce03f7d68b94260",
    "unit": "9cd7c33dc28eac7e2e724ad26a2c1586de6c86074bebacac761533355d542f70",
}


def unit(generator: np.random.Generator, n: int, d: int) -> np.ndarray:
    rows = generator.standard_normal((n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ask(
    query: MeanSimilarity, candidates: np.ndarray, prompt: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    return query.broadcast(candidates, prompt=grouped(query, prompt))


def grouped(query: MeanSimilarity, prompt: np.ndarray | None) -> np.ndarray | None:
    return prompt if query.centre == "prompt" else None


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of every row with every row, (m, k); 0 with a row of length 0."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=1)
    return left @ right.T / np.where(norms > 0, norms, 1.0)


def scores_by_definition(
    cohort: Cohort, candidates: np.ndarray, prompt: np.ndarray, *, centre: str, scale: str
) -> np.ndarray:
    """(num_users, m): one user at a time."""
    result = np.zeros((cohort.num_users, len(candidates)))
    for user in range(cohort.num_users):
        texts = cohort.records[cohort.owners == user]
        if len(texts) == 0:
            continue
        row = cosines(candidates, texts).mean(axis=1)
        if centre == "all":
            row = row - row.mean()
        if centre == "prompt":
            for group in np.unique(prompt):
                row[prompt == group] -= row[prompt == group].mean()
        norm = np.linalg.norm(row)
        if scale == "unit":
            row = row / norm if norm > 1e-4 * np.sqrt(len(row)) else 0.0 * row
        elif norm > 1:
            row = row / norm
        result[user] = row
    return result


@pytest.fixture(scope="module")
def real() -> tuple[Cohort, np.ndarray, np.ndarray]:
    """A cohort, candidates, and their prompts, as MiniLM gives them.

    All are near to one another, in 384 dimensions of which two never vary.
    """
    vectors = np.random.default_rng(1).normal(0.4, 1.0, (200, 384)).astype(np.float32)
    vectors[:, [7, 99]] = 0.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    candidates, private = vectors[:110], vectors[110:]
    counts = np.array([1, 3, 0, 5, 2, 1, 4, 0, 6, 3] * 4)[:36]
    counts = counts[np.cumsum(counts) <= len(private)]
    owners = np.repeat(np.arange(len(counts)), counts)
    records = private[: len(owners)].copy()
    records[1:4] = records[1]  # a user with one text three times
    prompt = np.random.default_rng(0).permutation(np.arange(len(candidates)) // 7)
    return Cohort(records, owners, len(counts)), candidates, prompt


class TestTheFormulas:
    @pytest.mark.parametrize("space", SPACES)
    def test_the_authors_code_at_zero_noise(
        self, real: tuple[Cohort, np.ndarray, np.ndarray], space: str
    ) -> None:
        # Their client: z-scores of summed cosines, then clipped to norm 1; z-scored vectors are
        # far longer than 1, so every user ends at norm exactly 1.
        cohort, candidates, _ = real
        expected = np.zeros(len(candidates))
        for user in range(cohort.num_users):
            texts = cohort.records[cohort.owners == user]
            if len(texts):
                summed = cosines(candidates, texts).sum(axis=1)
                z = (summed - summed.mean()) / summed.std()
                expected += z / np.linalg.norm(z)
        query = MeanSimilarity(centre="all", scale="unit", answer_space=space)
        answer = query.answer(cohort, ask(query, candidates))
        if space == "span":
            answer = expand_scores(answer, candidates, centre="all")
        assert np.abs(answer - expected).max() <= TOLERANCE[space] * np.abs(expected).max()

    def test_the_paper_clips_raw_cosines(self) -> None:
        candidates = np.array([[2, 0, 0], [0, 3, 0], [0, 0, 0]], dtype=np.float32)
        records = np.array([[5, 0, 0], [0, 0, 7], [3, 4, 0]], dtype=np.float32)
        cohort = Cohort(records, np.array([0, 0, 1]), 2)
        query = MeanSimilarity(centre="none")
        # Means (1/2, 0, 0) and (0.6, 0.8, 0): neither is longer than 1.
        assert np.allclose(
            query.contribution(cohort, {"candidates": candidates}),
            [[0.5, 0, 0], [0.6, 0.8, 0]],
            atol=1e-4,
        )
        many = {"candidates": np.repeat(candidates[:1], 16, axis=0)}
        assert np.allclose(
            query.contribution(cohort, many), [[0.25] * 16, [0.25] * 16], atol=1e-4
        )  # norms 2 and 2.4 before


class TestTheCohortForm:
    @settings(max_examples=100, deadline=None)
    @given(
        data=st.data(),
        centre=st.sampled_from(CENTRES),
        scale=st.sampled_from(["clip", "unit"]),
        space=st.sampled_from(SPACES),
    )
    def test_equals_the_direct_form_on_any_small_numbers(
        self, data: st.DataObject, centre: str, scale: str, space: str
    ) -> None:
        # Small whole numbers make equal rows, zero rows, constant candidates and low rank common;
        # owners leave some users empty and give some one text.
        whole = st.integers(-2, 2).map(float)
        m = data.draw(st.integers(1, 9))
        candidates = data.draw(hnp.arrays(np.float32, (m, 3), elements=whole))
        if data.draw(st.booleans()):
            candidates = np.repeat(candidates[:1], m, axis=0)
        prompt = data.draw(hnp.arrays(np.int64, m, elements=st.integers(0, 3)))
        n = data.draw(st.integers(0, 8))
        records = data.draw(hnp.arrays(np.float32, (n, 3), elements=whole))
        owners = np.sort(data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, 4))))
        cohort = Cohort(records, owners, 5)
        query = MeanSimilarity(centre=centre, scale=scale, answer_space=space)
        broadcast = ask(query, candidates, prompt)
        query.check(broadcast, dimension=3)
        with np.errstate(all="raise", under="ignore"):
            answer = query.answer(cohort, broadcast)
            contributions = query.contribution(cohort, broadcast)
        assert np.linalg.norm(contributions, axis=1).max() <= 1.0
        direct = scores_by_definition(cohort, candidates, prompt, centre=centre, scale=scale)
        room = 1e-5 * np.linalg.norm(direct, axis=1).sum() + 1e-7
        if space == "candidates":  # a step of 2^-15 in each number that was multiplied
            assert np.array_equal(answer, contributions.sum(axis=0))
            room += 8 * 2.0**-15 * len(np.unique(owners))
        if space == "span":
            answer = expand_scores(answer, candidates, prompt=grouped(query, prompt), centre=centre)
        assert np.linalg.norm(answer - direct.sum(axis=0)) <= room

    @pytest.mark.parametrize("space", SPACES)
    @pytest.mark.parametrize("scale", ["clip", "unit"])
    def test_no_preference_no_contribution(self, space: str, scale: str) -> None:
        # Equal candidates, in float32 and after a different rounding of the same direction.
        generator = np.random.default_rng(9)
        one = unit(generator, 1, 16)
        candidates = np.concatenate([one * np.float32(1 + k / 7) for k in range(40)])
        cohort = random_cohort(num_users=30, max_records=3, dimension=16, seed=10, empty=0.0)
        for centre in ("prompt", "all"):
            query = MeanSimilarity(centre=centre, scale=scale, answer_space=space)
            broadcast = ask(query, candidates, np.arange(40) % 4)
            with np.errstate(all="raise", under="ignore"):
                answer = query.answer(cohort, broadcast)
            assert np.abs(answer).max() <= (0.0 if scale == "unit" else 1e-4)


class TestTheSpan:
    def test_noise_is_projected_onto_the_span(self) -> None:
        generator = np.random.default_rng(17)
        m, d, draws, sigma = 12, 5, 200_000, 3.0
        candidates, prompt = unit(generator, m, d), np.arange(m) // 3
        centred = candidates - candidates.reshape(-1, 3, d).mean(axis=1).repeat(3, axis=0)
        projection = centred @ np.linalg.pinv(centred)
        basis = np.column_stack(
            [expand_scores(row, candidates, prompt=prompt) for row in np.eye(d)]
        )  # linear
        noise = sigma * basis @ generator.standard_normal((d, draws))
        covariance = noise @ noise.T / draws
        # 5 standard errors of the largest entry: sigma^2 sqrt(2 / draws)
        assert (
            np.abs(covariance - sigma**2 * projection).max()
            < 5 * sigma**2 * (2 / draws) ** 0.5 + 1e-4
        )
        assert np.trace(covariance) / m == pytest.approx(sigma**2 * d / m, rel=0.02)

    @pytest.mark.parametrize("spectrum", ["full", "low rank", "ill-conditioned"])
    @pytest.mark.parametrize("centre", CENTRES)
    def test_roots_that_differ_by_rounding_do_not_matter(self, spectrum: str, centre: str) -> None:
        # The users' root is rounded to float32, and has more noise than any machine has; the server
        # does not know.
        generator = np.random.default_rng(18)
        d, m = 24, 400
        candidates = unit(generator, m, d)
        if spectrum == "low rank":
            candidates = candidates[generator.integers(0, 9, size=m)]
        if spectrum == "ill-conditioned":
            candidates = (candidates * np.logspace(0, -7, d)).astype(np.float32)
        prompt = np.arange(m) // 10
        cohort = random_cohort(num_users=200, max_records=3, dimension=d, seed=19, empty=0.0)
        direct = scores_by_definition(cohort, candidates, prompt, centre=centre, scale="clip")
        exact = direct.sum(axis=0)
        span = MeanSimilarity(centre=centre, answer_space="span")
        root = ask(span, candidates, prompt)["root"]
        noise = 1e-7 * np.abs(root).max() * generator.standard_normal(len(root))
        answer = span.answer(cohort, {"root": (root + noise).astype(np.float32)})
        scores = expand_scores(answer, candidates, prompt=grouped(span, prompt), centre=centre)
        assert np.linalg.norm(scores - exact) <= 2e-5 * np.linalg.norm(exact)

    @pytest.mark.parametrize("size", [0.0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3])
    def test_no_direction_lengthens_the_noise(self, size: float) -> None:
        # Directions so short that the root of C'C knows nothing of their length.
        generator = np.random.default_rng(28)
        d, m = 24, 200
        candidates = unit(generator, m, 6) @ unit(generator, 6, d)
        candidates = (candidates + size * unit(generator, m, d)).astype(np.float32)
        basis = np.column_stack([expand_scores(row, candidates, centre="all") for row in np.eye(d)])
        assert np.linalg.norm(basis, 2) <= 1 + 1e-3

    def test_an_answer_is_the_same_bits_on_every_machine(self) -> None:
        """No node factorises anything: each multiplies by the same root, without rounding."""
        generator = np.random.default_rng(21)
        triangle = generator.integers(-9, 9, 48 * 49 // 2).astype(np.float32) / 32
        counts = generator.integers(0, 4, 60)
        records = generator.integers(-5, 5, (counts.sum(), 48)).astype(np.float32)
        cohort = Cohort(records, np.repeat(np.arange(60), counts), 60)
        for scale, known in FROZEN_ANSWERS.items():
            query = MeanSimilarity(answer_space="span", scale=scale)
            rows = query.contribution(cohort, {"root": triangle})
            assert hashlib.sha256(rows.astype("<f8").tobytes()).hexdigest() == known
            assert np.array_equal(query.answer(cohort, {"root": triangle}), rows.sum(axis=0))


class TestTheBound:
    @settings(max_examples=60, deadline=None)
    @given(
        root=hnp.arrays(np.float32, 6, elements=st.floats(width=32, allow_nan=False)),
        scale=st.sampled_from(["clip", "unit"]),
    )
    def test_no_root_lengthens_an_answer(self, root: np.ndarray, scale: str) -> None:
        """Whatever a server sends: it need not be a root of anything."""
        query = MeanSimilarity(scale=scale, answer_space="span")
        cohort = Cohort(np.eye(3, dtype=np.float32), np.arange(3), 3)
        if np.isfinite(root).all():
            query.check({"root": root}, dimension=3)
        else:
            with pytest.raises(ValueError, match="finite"):
                query.check({"root": root}, dimension=3)
            return
        rows = query.contribution(cohort, {"root": root})
        assert np.linalg.norm(rows, axis=1).max() <= 1.0
        everyone = query.answer(cohort, {"root": root})
        rest = query.answer(cohort.select(np.array([True, False, True])), {"root": root})
        assert np.linalg.norm(everyone - rest) <= 1.0
