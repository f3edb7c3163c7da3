"""Reading a sketch: nearer to the truth than what was counted, and as sure as it says it is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flower_privsyn.queries import Cohort, JointSketch
from flower_privsyn.run.method import SumOfUsers
from flower_privsyn.strategies._sketch_reading import (
    BlockReading,
    TokenSketch,
    length_written,
    pseudo_users,
)

V, LENGTH, USERS = 200, 100, 1000
QUERIES = {
    "tokens": JointSketch(max_tokens_per_user=LENGTH),
    "both": JointSketch(bigram_share=0.5, max_tokens_per_user=LENGTH),
}


class World:
    """Public text of independent tokens; private tokens are others, and some pairs of them too."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        law = 1.0 / np.arange(4, V + 4)
        public = np.tile(law / law.sum(), (V, 1))
        private = public * np.exp(generator.normal(0, 0.7, V) * (generator.random(V) < 0.6))
        pairs = np.zeros((V, V))
        pairs[:25, :25] = generator.normal(0, 0.5, (25, 25))
        private *= np.exp(pairs)
        private /= private.sum(axis=1, keepdims=True)
        often = np.full(V, 1.0 / V)
        for _ in range(50):
            often = often @ private
        self.tokens = np.log(often / public[0])
        self.pairs = np.log(often[:, None] * private / (public[0][:, None] * public)).reshape(-1)
        self.public = self.users(generator, public, 2000)
        self.asked = self.users(generator, private, USERS)
        # All pairs of the most frequent tokens, and some of the others.
        a, b = np.divmod(np.arange(V * V), V)
        self.keys = np.flatnonzero(((a < 25) & (b < 25)) | (np.arange(V * V) % 97 == 0))
        self._readings: dict[tuple[str, float], TokenSketch] = {}

    @staticmethod
    def users(generator: np.random.Generator, chain: np.ndarray, count: int) -> Cohort:
        laws = np.cumsum(chain, axis=1)
        laws[:, -1] = 1.0
        line = (laws + np.arange(V)[:, None]).reshape(-1)  # one law after another
        tokens = np.empty((count, LENGTH), dtype=np.int64)
        now = generator.integers(0, V, size=count)
        for place in range(-10, LENGTH):
            now = np.searchsorted(line, now + generator.random(count), side="right") % V
            if place >= 0:
                tokens[:, place] = now
        return Cohort.of(list(tokens), np.arange(count), count)

    def released(self, name: str, noise_std: float) -> np.ndarray:
        total = QUERIES[name].answer(self.asked, QUERIES[name].broadcast(V, self.keys))
        return total + np.random.default_rng(0).normal(0, 1, len(total)) * noise_std

    def read(self, name: str, noise_std: float) -> TokenSketch:
        if (name, noise_std) not in self._readings:
            query = QUERIES[name]
            self._readings[name, noise_std] = TokenSketch.of(
                query,
                query.broadcast(V, self.keys),
                [SumOfUsers(self.released(name, noise_std), USERS, noise_std)],
                documents=self.public.records,
                tokens_per_user=LENGTH,
            )
        return self._readings[name, noise_std]

    def estimate(self, name: str, read: BlockReading, noise_std: float) -> np.ndarray:
        """What was counted of each item of a block: a mean over users."""
        query = QUERIES[name]
        tokens, *bigrams = query.blocks(query.broadcast(V, self.keys))
        block = tokens if read.keys is None else bigrams[0]
        return self.released(name, noise_std)[block.columns] / (USERS * block.weight)

    def blocks(self, name: str, noise_std: float) -> Iterator[tuple[BlockReading, np.ndarray]]:
        """What was read, and the true log-ratios up to what holds for all of a block."""
        reading = self.read(name, noise_std)
        for block, truth in ((reading.tokens, self.tokens), (reading.bigrams, self.pairs)):
            if block is not None:
                yield block, truth if block.keys is None else truth[block.keys]


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=1)


def error(guess: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> float:
    """Weighted root mean square error, whatever holds for all aside."""
    off = guess - truth
    off = off - np.average(off, weights=weights)
    return float(np.sqrt(np.average(off**2, weights=weights)))


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("noise_std", [3.0, 6.0])
def test_is_nearer_to_the_truth(world: World, name: str, noise_std: float) -> None:
    for block, truth in world.blocks(name, noise_std):
        estimate = world.estimate(name, block, noise_std)
        counted = np.log(np.maximum(estimate, 1e-3 * block.public) / block.public)
        read = error(block.log_ratio, truth, block.public)
        assert read < 0.95 * error(counted, truth, block.public)
        assert read < 0.95 * error(np.zeros_like(truth), truth, block.public)


@pytest.mark.parametrize("name", ["tokens", "both"])
@pytest.mark.parametrize("noise_std", [0.0, 3.0, 6.0])
def test_standard_errors_are_what_they_say(world: World, name: str, noise_std: float) -> None:
    for block, truth in world.blocks(name, noise_std):
        off = (block.log_ratio - truth) / block.standard_error
        weights = block.standard_error**-2
        off -= np.average(block.log_ratio - truth, weights=weights) / block.standard_error
        assert 0.8 <= np.sqrt(np.mean(np.square(off))) <= 1.2


def test_nothing_is_read_out_of_noise(world: World) -> None:
    reading = world.read("both", 1e7)
    for block in (reading.tokens, reading.bigrams):
        assert block is not None
        assert np.abs(block.log_ratio).max() < 1e-3
        assert np.allclose(block.rate / block.public, (block.rate / block.public)[0], rtol=0.05)
        assert np.isfinite(block.standard_error).all()


def test_rare_tokens_rank_above_others_by_what_they_might_be_alone(world: World) -> None:
    """Half of the tokens are rarer than the others, and in this world no more private."""

    def gap(values: np.ndarray) -> float:
        return float(values[V // 2 :].mean() - values[: V // 2].mean())

    for noise_std in (80.0, 200.0):
        block = world.read("tokens", noise_std).tokens
        assert gap(block.ranking(1.0)) > 0.05
        assert abs(gap(block.ranking(0.0))) < 0.02
        assert np.array_equal(block.ranking(1.0), block.predictive)
        assert np.array_equal(block.ranking(0.0), block.log_ratio)


def test_a_bigram_inherits_from_its_tokens(world: World) -> None:
    # In this world most tokens are independent: a pair's log-ratio is the sum of its tokens'.
    reading = world.read("both", 6.0)
    assert reading.bigrams is not None
    first, second = np.divmod(world.keys, V)
    own = reading.tokens.log_ratio[first] + reading.tokens.log_ratio[second]
    rare = reading.bigrams.public < np.median(reading.bigrams.public)
    assert np.corrcoef(own[rare], reading.bigrams.log_ratio[rare])[0, 1] > 0.8


def test_people_who_are_drawn_and_asked_again_say_less_than_as_many_others(world: World) -> None:
    query = QUERIES["tokens"]
    broadcast = query.broadcast(V)
    once = SumOfUsers(query.answer(world.asked, broadcast), USERS, 0.0)
    errors = []
    for released in (once, once._replace(rounds=4), once._replace(rate=0.25, by_coins=True)):
        block = TokenSketch.of(
            query, broadcast, [released], documents=world.public.records, tokens_per_user=LENGTH
        ).tokens
        errors.append(block.standard_error)
    assert (errors[1] > 1.2 * errors[0]).all()
    assert (errors[2] > errors[0]).all()


def test_what_public_text_lacks_is_still_defined(world: World) -> None:
    silent = [np.zeros(LENGTH, dtype=np.int64)] * 5
    query = QUERIES["both"]
    broadcast = query.broadcast(V, world.keys)
    total = query.answer(world.asked, broadcast)
    reading = TokenSketch.of(
        query,
        broadcast,
        [SumOfUsers(total, USERS, 0.0)],
        documents=silent,
        tokens_per_user=LENGTH,
    )
    for block in (reading.tokens, reading.bigrams):
        assert block is not None
        assert np.isfinite(block.log_ratio).all()
        assert (block.public > 0).all()


class TestLength:
    def released(
        self, world: World, query: JointSketch, written: int, noise: float
    ) -> tuple[np.ndarray, int]:
        asked = pseudo_users(list(world.asked.records), tokens_per_user=written)
        total = query.answer(asked, query.broadcast(V, world.keys))
        return total + np.random.default_rng(0).normal(0, noise, len(total)), asked.num_users

    @pytest.mark.parametrize("share", [0.0, 0.5])
    @pytest.mark.parametrize("written", [32, 91])
    def test_is_read_from_the_release(self, world: World, share: float, written: int) -> None:
        # Users write of other things than public text does.
        query = JointSketch(max_occurrences=4, bigram_share=share)
        total, users = self.released(world, query, written, noise=10)
        found = length_written(
            query,
            query.broadcast(V, world.keys),
            SumOfUsers(total, users, 10),
            documents=list(world.public.records),
        )
        assert 0.6 < found / written < 1.6

    def test_is_what_counts_where_nothing_can_be_read(self, world: World) -> None:
        query, noise = JointSketch(max_tokens_per_user=500), 1e5
        total, users = self.released(world, query, 32, noise=noise)
        found = length_written(
            query,
            query.broadcast(V),
            SumOfUsers(total, users, noise),
            documents=list(world.public.records),
        )
        assert found == 500


class TestPseudoUsers:
    def test_have_as_much_as_they_may(self) -> None:
        documents = [np.arange(start, start + size) for start, size in ((0, 7), (10, 2), (20, 6))]
        cohort = pseudo_users(documents, tokens_per_user=5)
        found = [
            [record.tolist() for record in cohort.records[cohort.owners == user]]
            for user in range(cohort.num_users)
        ]
        assert found == [[[0, 1, 2, 3, 4]], [[5, 6], [10, 11], [20]], [[21, 22, 23, 24, 25]]]

    def test_leave_out_whoever_cannot_be_filled(self) -> None:
        cohort = pseudo_users([np.arange(7)], tokens_per_user=5)
        assert [record.tolist() for record in cohort.records] == [[0, 1, 2, 3, 4]]
        alone = pseudo_users([np.arange(3)], tokens_per_user=5)
        assert [record.tolist() for record in alone.records] == [[0, 1, 2]]
        assert pseudo_users([], tokens_per_user=5).num_users == 0
