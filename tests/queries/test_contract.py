"""What every query promises: a user adds to a sum what the user alone would answer, to the bit.

So nothing that is public (the candidates of a malicious server) and nobody else on the node can
make one user move a sum by more than the clip norm. The cohorts lie on both sides of the sizes at
which BLAS changes its kernels (OpenBLAS: rows x candidates x (d + 1) around 10^6), which round
differently, and of those where products of few rows or of left-over rows do.

These hold on any machine with IEEE 754 arithmetic, and that they do is not left to its libraries:
`TestExactProducts` shows that nothing is rounded where a library chooses the order, and every other
sum is made of elementwise additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from flower_privsyn.errors import ConfigError
from flower_privsyn.messages import wire
from flower_privsyn.privacy import squared_norms
from flower_privsyn.privacy.mechanisms import GRID
from flower_privsyn.queries import (
    QUERIES,
    Cohort,
    ConditionalDelta,
    JointSketch,
    LabelledHistogram,
    MeanSimilarity,
    ModelDelta,
    Moments,
    NearestNeighborHistogram,
    Query,
)
from flower_privsyn.queries.arithmetic import RightFactor, exact_product
from flower_privsyn.queries.arrays import Broadcast
from flower_privsyn.queries.joint_sketch import frequent_bigrams
from flower_privsyn.queries.model_delta import pack_conditions
from flower_privsyn.testing import random_cohort
from tests.support.audit import assert_audit_comes_near
from tests.support.ladder import ladder

DIMENSION, CANDIDATES, VOCABULARY = 96, 50, 40
SIMILARITIES = [
    MeanSimilarity(answer_space=space, centre=centre, scale=scale)
    for space in ("candidates", "span")
    for centre in ("prompt", "all", "none")
    for scale in ("clip", "unit")
]
ASKED: list[Query] = [
    NearestNeighborHistogram(max_samples=3),
    NearestNeighborHistogram(max_samples=5, clip="l2"),
    NearestNeighborHistogram(max_samples=5, clip="share"),
    LabelledHistogram(max_samples=3),
    LabelledHistogram(max_samples=4, clip="l2"),
    *SIMILARITIES,
    MeanSimilarity(answer_space="span", max_samples=2),
    Moments(radius=0.8),
    Moments(unit="record", max_samples=4, count_share=0.3),
    Moments(radius=0.5, covariance_share=0.0),
    Moments(radius=5.0, covariance_share=1.0),
    JointSketch(bigram_share=0.4, max_tokens_per_user=30),
    JointSketch(max_occurrences=2),
    JointSketch(bigram_share=0.999),
    ModelDelta(clip_to=0.8),
    ModelDelta(clip_to=1.1, bit_share=0.2),
    ModelDelta(clip_to=1e-6, bit_share=0.9),
    ModelDelta(clip_to=1e4),
    ConditionalDelta(clip_to=0.8),
]


asked = pytest.mark.parametrize("query", ASKED, ids=lambda query: f"{query.name}-{query.to_wire()}")


def shared_record(dimension: int) -> np.ndarray:
    """What everybody wrote: whatever moves one vote moves all of them."""
    record = np.random.default_rng(11).standard_normal(dimension).astype(np.float32)
    return record / np.linalg.norm(record)


#: What a malicious server may make of the matrices that it sends.
MADE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as they are": lambda points: points,
    **{
        f"times {scale:g}": lambda points, scale=scale: points * np.float32(scale)
        for scale in (1e-20, 1e-12, 1e6, 1e20)
    },
    "sorted": lambda points: np.sort(points, axis=0),
    "equal": lambda points: np.repeat(points[:1], len(points), axis=0),
    "zero": np.zeros_like,
    "subnormal": lambda points: points * np.float32(1e-40),
    **{
        f"a ladder times {scale:g}": lambda points, scale=scale: (
            ladder(len(points), shared_record(DIMENSION)) * np.float32(scale)
        )
        for scale in (1e-16, 1e-12, 1.0)
    },
}


def cohort_for(query: Query, users: int, seed: int) -> Cohort:
    """Users with a few records each, the first record of every other user that of all."""
    generator = np.random.default_rng(seed)
    if query.reads == "tokens" and not query.trains:
        owners = np.sort(generator.integers(0, users, 3 * users))
        texts = [generator.integers(0, VOCABULARY, generator.integers(0, 25)) for _ in owners]
        return Cohort.of(texts, owners, users)
    most = 1 if query.trains or seed % 2 else 4
    cohort = random_cohort(num_users=users, max_records=most, dimension=DIMENSION, seed=seed)
    first = np.flatnonzero(np.diff(cohort.owners, prepend=-1))
    cohort.records[first if seed % 2 else first[::2]] = shared_record(DIMENSION)
    if not query.labelled:
        return cohort
    labels = generator.integers(-1, 4, len(cohort.owners))
    return Cohort(cohort.records, cohort.owners, users, labels)


def broadcast_for(
    query: Query,
    made: Callable[[np.ndarray], np.ndarray] = lambda points: points,
    *,
    seed: int = 7,
) -> dict[str, np.ndarray]:
    """As messages give it to a node: arrays of their own that cannot change."""
    sent = {name: array.copy() for name, array in public(query, made, seed).items()}
    for array in sent.values():
        array.flags.writeable = False
    return sent


def public(
    query: Query, made: Callable[[np.ndarray], np.ndarray], seed: int
) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    points = generator.standard_normal((CANDIDATES, DIMENSION)).astype(np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[30:40] = points[:10]  # equal candidates are ties for every record
    points[40:] = points[:10] * np.float32(1 + 2**-20)  # and these are nearly so
    points = made(points)
    if isinstance(query, JointSketch):
        text = [generator.integers(0, VOCABULARY, 500)]
        pairs = frequent_bigrams([text], vocabulary=VOCABULARY, most=200)
        return query.broadcast(VOCABULARY, pairs if query.bigram_share else None)
    if isinstance(query, ModelDelta):
        sent = {"parameters": points[0]}
        if isinstance(query, ConditionalDelta):
            sent |= {"centres": points[:3], "conditions": pack_conditions(["a", "b", "c"])}
        return sent
    if isinstance(query, Moments):
        return query.broadcast(points[0, :20], points[:20])
    if isinstance(query, LabelledHistogram):
        return {"candidates": points, "classes": np.arange(CANDIDATES) % 3}
    if isinstance(query, MeanSimilarity):
        prompt = np.arange(CANDIDATES) // 7 if query.centre == "prompt" else None
        return query.broadcast(points, prompt=prompt)
    return {"candidates": points}


def test_every_query_is_held_to_the_contract() -> None:
    assert {type(query) for query in ASKED} == set(QUERIES)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threadpool_limits(limits=request.param):
        yield request.param


@asked
def test_a_user_adds_what_they_would_answer_alone(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(3)
    cohorts = [cohort_for(query, users, seed=users) for users in (2, 17, 206, 207)]
    for made, make in MADE.items():
        broadcast = broadcast_for(query, make)
        if made != "as they are" and isinstance(query, JointSketch):
            continue  # nothing is sent that could be made otherwise
        query.check(
            broadcast, dimension=VOCABULARY if isinstance(query, JointSketch) else DIMENSION
        )
        # Only votes come from products that a library rounds, which change with the sizes.
        voted = isinstance(query, NearestNeighborHistogram)
        everywhere = made == "as they are" or (voted and made == "a ladder times 1")
        for everyone in cohorts if everywhere else cohorts[1:2]:
            users = everyone.num_users
            total = query.answer(everyone, broadcast)
            rows = query.contribution(everyone, broadcast)
            user = int(generator.integers(users))
            mask = np.arange(users) != user
            alone = query.answer(everyone.select(~mask), broadcast)
            rest = query.answer(everyone.select(mask), broadcast)
            assert np.array_equal(total - rest, alone), made
            assert np.linalg.norm(alone) <= query.clip_norm, made
            own = query.contribution(everyone.select(~mask), broadcast)[0]
            assert np.array_equal(rows[user], own), made
            if getattr(query, "clip", "count") == "count":  # else to a step of the grid per user
                assert np.array_equal(total, rows.sum(axis=0)), made
            # A node may ask about its users a part at a time.
            odd = np.arange(users) % 2 == 1
            parts = [query.answer(everyone.select(part), broadcast) for part in (odd, ~odd)]
            assert np.array_equal(total, sum(parts)), made
            assert np.array_equal(np.rint(rows / GRID) * GRID, rows), made
            with monkeypatch.context() as patch:
                patch.setattr("flower_privsyn.queries.query.BLOCK_BYTES", 4096)
                patch.setattr("flower_privsyn.queries.arithmetic._BLOCK_RECORDS", 7)
                patch.setattr("flower_privsyn.queries.moments._BLOCK_NUMBERS", 64)
                patch.setattr("flower_privsyn.queries.joint_sketch._BATCH_TOKENS", 50)
                patch.setattr("flower_privsyn.queries.nearest_neighbor._BLOCK_ELEMENTS", 5000)
                patch.setattr("flower_privsyn.queries.similarity._BLOCK_USERS", 7)
                patch.setattr("flower_privsyn.queries.similarity._EXPANDED_USERS", 50)
                assert np.array_equal(total, query.answer(everyone, broadcast)), made


def hostile(query: Query, seed: int) -> Cohort:
    """Three users who write what they like, of which some is no number and some no token."""
    generator = np.random.default_rng(seed)
    owners = np.sort(generator.integers(0, 3, seed % 10))
    if query.reads == "tokens" and not query.trains:
        tokens = np.array([*range(VOCABULARY), -1, VOCABULARY, 2**62, -(2**63)])
        lengths = generator.integers(0, 70, len(owners))
        return Cohort.of([generator.choice(tokens, n) for n in lengths], owners, 3)
    numbers = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e38, 1e-45, 0.0]
    records = generator.standard_normal((len(owners), DIMENSION)).astype(np.float32)
    there = generator.random(records.shape) < generator.choice([0, 1e-2, 1], (len(owners), 1))
    records[there] = generator.choice(numbers[seed % 3 :], there.sum()).astype(np.float32)
    labels = generator.integers(-1, 5, len(owners)) if query.labelled else None
    return Cohort(records, owners, 3, labels)


@asked
def test_nothing_that_a_user_writes_moves_a_sum_by_more_than_the_sensitivity(query: Query) -> None:
    broadcast = broadcast_for(query)
    room = 1 + 1e-12
    for seed in range(40):
        cohort = hostile(query, seed)
        rows = query.contribution(cohort, broadcast)
        assert np.isfinite(rows).all()
        assert np.linalg.norm(rows, axis=1).max() <= query.clip_norm
        rest = query.answer(cohort.select(np.array([True, False, True])), broadcast)
        moved = np.linalg.norm(query.answer(cohort, broadcast) - rest)
        assert moved <= query.clip_norm * room
        replaced = np.linalg.norm(rows[0] - rows[1])
        assert replaced <= 2.0 * query.clip_norm * room


def worst(query: Query, broadcast: Broadcast) -> Cohort:
    """A user who moves the sum as far as one can."""
    if query.reads == "tokens" and not query.trains:
        pair = divmod(int(broadcast["bigrams"][0]), VOCABULARY) if query.bigram_share else (0,)
        return Cohort.of([np.array(pair)], [0], 1)
    points = broadcast_for(NearestNeighborHistogram())["candidates"]
    record = 1e6 * broadcast["basis"][0] if isinstance(query, Moments) else 1e6 * points[0]
    owners = np.zeros(query.max_records or 1, dtype=np.int64)
    records = np.repeat(record[None].astype(np.float32), len(owners), axis=0)
    return Cohort(records, owners, 1, owners if query.labelled else None)


@asked
def test_the_declared_sensitivity_is_attained(query: Query) -> None:
    broadcast = broadcast_for(query)
    declared = query.clip_norm
    moved = np.linalg.norm(query.answer(worst(query, broadcast), broadcast))
    assert 0.999 * declared <= moved <= declared


@pytest.mark.parametrize(
    ("epsilon", "runs"), [pytest.param(1.0, 400_000, marks=pytest.mark.slow), (4.0, 150_000)]
)
@pytest.mark.parametrize(
    ("query", "broadcast", "user"),
    [
        (
            JointSketch(bigram_share=0.5),
            {"vocabulary": np.array([3]), "bigrams": np.array([1])},
            Cohort.of([np.array([0, 1] * 9)], [0], 1),
        ),
        (
            Moments(count_share=0.1),
            {"centre": np.zeros(2, dtype=np.float32)},
            Cohort(np.array([[3, 4]], dtype=np.float32), np.zeros(1, dtype=np.int64), 1),
        ),
        (
            LabelledHistogram(max_samples=4, clip="l2"),
            {"candidates": np.eye(6, dtype=np.float32), "classes": np.arange(6) % 3},
            Cohort(
                np.eye(4, 6, dtype=np.float32), np.zeros(4, dtype=np.int64), 1, np.arange(4) % 3
            ),
        ),
    ],
    ids=["joint sketch", "moments", "labels of three classes"],
)
def test_an_audit_comes_near_the_claimed_epsilon(
    query: Query, broadcast: Broadcast, user: Cohort, epsilon: float, runs: int
) -> None:
    """The whole mechanism on its worst user."""
    present = query.answer(user, broadcast)
    assert_audit_comes_near(query, present, np.zeros_like(present), epsilon=epsilon, runs=runs)


@asked
def test_who_writes_nothing_adds_nothing(query: Query) -> None:
    broadcast = broadcast_for(query)
    silent = replace(cohort_for(query, 4, seed=1).rows(slice(0)), num_users=4)
    for cohort in (silent, silent.select(np.zeros(4, dtype=np.bool_))):
        assert not query.answer(cohort, broadcast).any()
        rows = query.contribution(cohort, broadcast)
        assert rows.shape == (cohort.num_users, query.answer_length(broadcast))


@asked
def test_an_answer_is_the_same_where_a_process_is_given_the_same_arrays_again(
    query: Query,
) -> None:
    """What is remembered of an array that cannot change (`once_per_array`) is right."""
    cohort = cohort_for(query, 9, seed=4)
    for seed in (7, 8):
        frozen = broadcast_for(query, seed=seed)
        asks = {name: array.copy() for name, array in frozen.items()}
        for _ in range(2):
            assert np.array_equal(query.answer(cohort, frozen), query.answer(cohort, asks))


@asked
def test_a_question_travels(query: Query) -> None:
    assert type(query).from_wire(query.to_wire()) == query
    with pytest.raises(TypeError, match="wolf"):
        type(query).from_wire({**query.to_wire(), "wolf": 1})
    sent = broadcast_for(query)
    record = wire.broadcast_record(sent, precision="float16", unrounded=query.unrounded)
    received = wire.read_broadcast(record)
    query.check(received, dimension=VOCABULARY if isinstance(query, JointSketch) else DIMENSION)
    for name, array in sent.items():
        if name in query.unrounded or array.dtype.kind != "f":
            assert np.array_equal(received[name], array)


CANDIDATES_ASKED = NearestNeighborHistogram(max_samples=3)
LABELS = LabelledHistogram(max_samples=3)
PROMPTS, ALL = MeanSimilarity(), MeanSimilarity(centre="all")
SPAN = MeanSimilarity(answer_space="span")
SKETCH, PAIRS = JointSketch(), JointSketch(bigram_share=0.4)
DELTA, CONDITIONS = ModelDelta(clip_to=0.8), ConditionalDelta(clip_to=0.8)
#: A bias of three tokens and two pairs.
BIAS = {
    "token_bias": np.zeros(3, dtype=np.float32),
    "bigram_starts": np.array([0, 1, 1, 2], dtype=np.int64),
    "bigram_tokens": np.array([0, 2], dtype=np.int32),
    "bigram_values": np.ones(2, dtype=np.float32),
}


@pytest.mark.parametrize(
    ("query", "changes", "named"),
    [
        *(
            (query, changes, named)
            for query, array in (
                (CANDIDATES_ASKED, "candidates"),
                (LABELS, "candidates"),
                (ALL, "candidates"),
                (SPAN, "root"),
                (Moments(), "centre"),
                (SKETCH, "vocabulary"),
                (PAIRS, "bigrams"),
                (DELTA, "parameters"),
                (CONDITIONS, "centres"),
            )
            for changes, named in (
                ({array: None}, array),
                ({"wolf": np.zeros(1)}, "wolf"),
                ({array: np.zeros(3, dtype="U1")}, array),
                ({array: np.zeros((2, 3, 4), dtype=np.float32)}, array),
                ({array: np.zeros((), dtype=np.float32)}, array),
            )
        ),
        (CANDIDATES_ASKED, {"candidates": np.zeros((0, DIMENSION))}, "candidates"),
        (CANDIDATES_ASKED, {"candidates": np.full((2, DIMENSION), np.nan)}, "finite"),
        (LABELS, {"classes": None}, "classes"),
        (LABELS, {"classes": np.zeros(3, dtype=np.int64)}, "classes"),
        (LABELS, {"classes": np.zeros(CANDIDATES)}, "classes"),
        (LABELS, {"classes": np.arange(CANDIDATES) - 1}, "at least 0"),
        (PROMPTS, {"prompt": None}, "prompt"),
        (PROMPTS, {"prompt": np.zeros(CANDIDATES)}, "prompt"),
        (PROMPTS, {"prompt": np.zeros(2, dtype=np.int64)}, "prompt"),
        (SPAN, {"root": np.full(DIMENSION * (DIMENSION + 1) // 2, np.nan, np.float32)}, "finite"),
        (Moments(), {"basis": np.zeros((20, 5), np.float32)}, "basis"),
        (Moments(), {"centre": np.arange(20)}, "centre"),
        (Moments(), {"centre": np.full(20, np.inf, np.float32)}, "finite"),
        (Moments(), {"shift": np.zeros(2, np.float32)}, "shift"),
        (SKETCH, {"vocabulary": np.array([VOCABULARY + 1])}, "vocabulary"),
        (PAIRS, {"bigrams": np.array([3, 3])}, "increasing"),
        (PAIRS, {"bigrams": np.array([-1, 3])}, "increasing"),
        (PAIRS, {"bigrams": np.array([VOCABULARY**2])}, "increasing"),
        (DELTA, {"parameters": np.full(DIMENSION, np.nan, np.float32)}, "finite"),
        (DELTA, {"base": np.zeros(2)}, "base"),
        (DELTA, {"base": np.full(2, np.inf, np.float32)}, "finite"),
        (DELTA, {"token_bias": np.zeros(3)}, "token_bias"),
        (DELTA, {"token_bias": np.full(3, np.nan, np.float32)}, "finite"),
        (DELTA, {**BIAS, "bigram_tokens": np.array([0, 3], np.int32)}, "bigram"),
        (DELTA, {**BIAS, "bigram_starts": np.array([0, 2, 1, 2])}, "bigram"),
        (
            DELTA,
            {
                **BIAS,
                "bigram_starts": np.array([0, 0, 0, 2]),
                "bigram_tokens": np.array([1, 1], np.int32),
            },
            "bigram",
        ),
        (DELTA, {**BIAS, "bigram_starts": np.array([0, 1, 1, 1, 2])}, "bias"),
        (CONDITIONS, {"conditions": np.zeros(4, dtype=np.uint8)}, "condition"),
        (CONDITIONS, {"conditions": np.zeros(4, dtype=np.float32)}, "conditions"),
        (CONDITIONS, {"conditions": np.array([255, 0, 255], dtype=np.uint8)}, "codec"),
    ],
)
def test_a_broadcast_that_does_not_fit_is_refused(
    query: Query, changes: dict[str, Any], named: str
) -> None:
    right: dict[str, Any] = broadcast_for(query)
    if query is DELTA:
        right |= {**BIAS, "base": np.zeros(2, np.float32)}
    dimension = VOCABULARY if isinstance(query, JointSketch) else DIMENSION
    query.check(right, dimension=dimension)
    if "token_bias" in changes and query is DELTA and len(changes) == 1:
        right = {name: array for name, array in right.items() if name not in BIAS}
    wrong = {name: array for name, array in {**right, **changes}.items() if array is not None}
    with pytest.raises(ValueError, match=named):
        query.check(wrong, dimension=dimension)


def test_an_answer_that_nobody_could_send_is_refused() -> None:
    vocabulary, side = 2**23 + 1, 5000
    with pytest.raises(ValueError, match="at most"):
        SKETCH.check(SKETCH.broadcast(vocabulary), dimension=vocabulary)
    with pytest.raises(ValueError, match="at most"):
        Moments().check({"centre": np.zeros(side, np.float32)}, dimension=side)
    for given in (None, np.zeros(2, dtype=np.int64)):
        with pytest.raises(ValueError, match="prompt|finite"):
            SPAN.broadcast(np.full((2, 3), np.nan), prompt=given)


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (NearestNeighborHistogram, {"max_samples": 0}, "max-samples"),
        (NearestNeighborHistogram, {"max_samples": 2.5}, "max-samples"),
        (NearestNeighborHistogram, {"clip": "linf"}, "clip"),
        (NearestNeighborHistogram, {"clip_to": 3.0}, "clip-to"),
        (NearestNeighborHistogram, {"clip": "l2", "clip_to": 1.0, "max_samples": 9}, "clip-to"),
        (NearestNeighborHistogram, {"clip": "l2", "clip_to": 9.5, "max_samples": 9}, "clip-to"),
        (MeanSimilarity, {"centre": "median"}, "centre"),
        (MeanSimilarity, {"answer_space": "subspace"}, "answer-space"),
        (MeanSimilarity, {"max_samples": 2.0}, "max-samples"),
        (Moments, {"radius": 0.0}, "radius"),
        (Moments, {"radius": float("nan")}, "radius"),
        (Moments, {"covariance_share": 1.1}, "covariance-share"),
        (Moments, {"count_share": 1.0}, "count-share"),
        (Moments, {"unit": "sample"}, "unit"),
        (Moments, {"unit": "record"}, "max-samples"),
        (JointSketch, {"bigram_share": float("nan")}, "bigram-share"),
        (JointSketch, {"max_tokens_per_user": 0}, "max-tokens-per-user"),
        (JointSketch, {"max_tokens_per_user": 2**25}, "max-tokens-per-user"),
        (ModelDelta, {"clip_to": float("nan")}, "clip-to"),
        (ModelDelta, {"clip_to": True}, "clip-to"),
        (ModelDelta, {"clip_to": 1.0, "bit_share": 0.95}, "bit-share"),
        (ModelDelta, {"clip_to": 1.0, "epochs": 0}, "epochs"),
    ],
)
def test_a_parameter_out_of_range_is_named(
    kind: type[Query], values: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        kind(**values)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("candidates", "users"), [(8, 324), (50, 51), (60, 42), (200, 12), (1024, 2)]
)
@pytest.mark.parametrize("scale", [1e-20, 1e-16, 1e-12, 1e-9, 1.0])
def test_candidates_that_only_a_kernel_tells_apart_move_one_vote(
    candidates: int, users: int, scale: float
) -> None:
    """Everybody's vote moved with one user more: 73 clip norms, 459 of 324 users."""
    query = NearestNeighborHistogram(max_samples=1)
    record = shared_record(384)
    broadcast = {"candidates": ladder(candidates, record) * np.float32(scale)}
    answers = [
        query.answer(Cohort(np.repeat(record[None], n, axis=0), np.arange(n), n), broadcast)
        for n in range(users - 2, users + 4)
    ]
    assert np.linalg.norm(np.diff(answers, axis=0), axis=1).max() <= query.clip_norm


@dataclass(frozen=True, kw_only=True)
class _Float32(Query):
    """A question of another package, whose author did not think of precision."""

    name: ClassVar[str] = "rows_in_float32"

    @property
    def clip_norm(self) -> float:
        return 1.0

    def statistic(self, cohort: Cohort, broadcast: Broadcast) -> Any:
        rows = np.zeros((cohort.num_users, 2), dtype=np.float32)
        rows[cohort.owners] = cohort.records
        return rows


def test_a_statistic_in_float32_moves_a_sum_by_the_clip_norm_at_most() -> None:
    """One user takes the sum over a power of two, where float32 drops what all others add."""
    first, others = 2**11 + 1, 6000
    records = np.zeros((first + others, 2), dtype=np.float32)
    records[:first, 0] = 1.0
    records[first:, 0] = -0.51 * 2.0 ** (11 - 24)
    without = records.copy()
    without[first - 1] = 0.0
    query, broadcast = _Float32(), {"candidates": np.eye(2, dtype=np.float32)}
    owners = np.arange(len(records))
    moved = np.linalg.norm(
        query.answer(Cohort(records, owners, len(records)), broadcast)
        - query.answer(Cohort(without, owners, len(records)), broadcast)
    )
    assert moved <= query.clip_norm
    contribution = query.contribution(Cohort(records, owners, len(records)), broadcast)
    assert contribution.dtype == np.float64


class TestExactProducts:
    @pytest.mark.parametrize("length", [1e-30, 0.5, 1.0 - 2**-53, 1.0, 1.5, 3e30])
    def test_no_partial_sum_passes_what_float64_holds(self, length: float) -> None:
        """The reason why no order, shape or processor matters."""
        generator = np.random.default_rng(0)
        for dimension in (1, 7, 384, 4096):
            rows = generator.standard_normal((20, dimension))
            rows[0] = 1.0  # all of one sign, and all equal
            rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
            right = RightFactor.of(rows)
            assert np.array_equal(right.integers, np.rint(right.integers))
            left = rows * 2.0 ** (27 - right.exponent)
            largest = np.abs(np.rint(left)) @ np.abs(right.integers)
            assert largest.max() < 2.0**53
            expected = rows @ rows.T
            assert (
                np.abs(exact_product(rows, right) - expected).max()
                <= dimension**0.5 * 2**-25 * length**2
            )

    def test_equals_whole_numbers_multiplied_by_python(self) -> None:
        generator = np.random.default_rng(1)
        rows, columns = generator.standard_normal((5, 30)), generator.standard_normal((4, 30))
        right = RightFactor.of(columns)
        exponents = [int(np.frexp(np.linalg.norm(row))[1]) for row in rows]
        result = exact_product(rows, right)
        for n, exponent in enumerate(exponents):
            left = [round(float(x) * 2.0 ** (27 - exponent)) for x in rows[n]]
            for k in range(4):
                exact = sum(a * int(b) for a, b in zip(left, right.integers[:, k], strict=True))
                assert result[n, k] == float(exact) * 2.0 ** (exponent + right.exponent - 53)

    @pytest.mark.usefixtures("threads")
    def test_a_row_is_the_same_in_every_shape_and_place(self) -> None:
        generator = np.random.default_rng(2)
        right = RightFactor.of(generator.standard_normal((130, 96)))
        rows = generator.standard_normal((70, 96))
        together = exact_product(rows, right)
        for count in range(1, 71):
            assert np.array_equal(exact_product(rows[-count:], right), together[-count:])
        assert np.array_equal(exact_product(rows[::-1], right), together[::-1])

    def test_zeros_and_nothing(self) -> None:
        right = RightFactor.of(np.zeros((3, 4)))
        assert not exact_product(np.ones((2, 4)), right).any()
        assert exact_product(np.ones((0, 4)), right).shape == (0, 3)
        assert not exact_product(np.zeros((2, 4)), RightFactor.of(np.ones((3, 4)))).any()


class TestRows:
    def test_a_norm_is_the_same_in_every_place(self) -> None:
        generator = np.random.default_rng(4)
        for columns in (1, 2, 3, 10, 385, 70_000):
            rows = generator.standard_normal((9 if columns > 1000 else 400, columns))
            together = squared_norms(rows)
            assert np.allclose(together, (rows**2).sum(axis=1), rtol=1e-12)
            alone = np.concatenate([squared_norms(row[None]) for row in rows])
            assert np.array_equal(alone, together)
            padded = np.zeros((len(rows), columns + 1), dtype=np.float64)
            padded[:, 1:] = rows
            assert np.array_equal(squared_norms(padded[:, 1:]), together)
        assert squared_norms(np.ones((0, 3))).shape == (0,)
        assert squared_norms(np.ones((3, 0))).tolist() == [0, 0, 0]
