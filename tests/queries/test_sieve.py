"""The sieve rules out no candidate that is nearest, and changes no vote."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

from flower_privsyn.queries import nearest_candidates, nearest_neighbor, sieve


@pytest.fixture(autouse=True)
def _whatever_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its speed decides elsewhere whether there is a sieve; what it leaves is the same."""
    monkeypatch.setattr(sieve, "is_fast", lambda: True)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many candidates the sieve leaves, no product in float32 takes over."""
    monkeypatch.setattr(nearest_neighbor, "_PAIRS_WORTH_A_PRODUCT", 1)


def unit(generator: np.random.Generator, n: int, d: int) -> np.ndarray:
    rows = generator.standard_normal((n, d)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def left_of(records: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """(n, m) bool: which candidates the sieve leaves of each record; all of one that is open."""
    made = sieve.sieve_of(candidates, len(records))
    assert made is not None
    left = np.zeros((len(records), len(candidates)), dtype=bool)
    for start, stop in made.pieces(len(records)):
        block = made.block(records, start, stop, [])
        left[start + block.rows, block.columns] = True
    return left | ~left.any(axis=1, keepdims=True)


def brute_force(records: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """A few records at a time, left to right: what decides near ties in the package."""
    nearest = []
    for record in records.astype(np.float64):
        squares = (record - candidates.astype(np.float64)) ** 2
        nearest.append(np.add.accumulate(squares, axis=1)[:, -1].argmin())
    return np.array(nearest)


def rounded_against(
    generator: np.random.Generator, groups: int, d: int
) -> tuple[np.ndarray, np.ndarray]:
    """Records and candidates whose rounding to bfloat16 turns round who is nearest.

    Around a vector of bfloat16 numbers, one candidate of each group is moved by nearly half a step
    towards the records, and rounded back; the others are moved in half of their numbers, a little
    farther, and rounded on. Records are nearly orthogonal to it, so that products are small and
    little of them is lost when they are stored.
    """
    base = torch.from_numpy(unit(generator, groups, d)).bfloat16().float().numpy()
    aside = unit(generator, groups, d)
    aside -= (aside * base).sum(axis=1, keepdims=True) * base
    towards = (aside / np.linalg.norm(aside, axis=1, keepdims=True) + 0.1 * base).astype(np.float32)
    towards = torch.from_numpy(towards).bfloat16().float().numpy()  # nothing is lost in records
    step = np.ldexp(1.0, np.frexp(base)[1] - 8) * np.sign(towards)
    coins = generator.integers(0, 2, (groups, 64, d))
    moved = np.where(coins == 1, 0.502, -0.498)
    moved[:, 17] = 0.498
    candidates = (base[:, None] + moved * step[:, None]).astype(np.float32).reshape(-1, d)
    scales = 2.0 ** np.arange(8)[:, None]
    records = (towards[:, None] * scales).astype(np.float32).reshape(-1, d)
    return records, candidates


def records_rounded_against(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Records that rounding moves from the nearest of two far candidates towards the other.

    All numbers of the candidates are bfloat16's own. A record is a vector of such numbers, a little
    nearer to one candidate, and half a step in each number towards the other. Different pairs of
    candidates are orthogonal, so that products are small.
    """
    signs = hadamard(256)[:128] * generator.choice([-1.0, 1.0], 256)
    vectors = signs * 3 / 32
    vectors[:, 128:] *= -1
    vectors[:, 254], vectors[:, 255] = -15 / 64 * signs[:, 254], 0.0
    shared = vectors / 24
    shared[:, [0, 1, 254, 255]] = 0.0
    pairs = [shared + signs / 16, shared - signs / 16]
    candidates = np.concatenate([*pairs, *(-one for one in pairs)]).astype(np.float32)
    steps = np.ldexp(1.0, np.frexp(vectors)[1] - 8) * (vectors != 0)
    records = (vectors + 0.49 * steps * signs).astype(np.float32)
    return records, candidates


class TestAdversaries:
    @pytest.mark.parametrize("d", [48, 384])
    def test_what_rounding_turns_round_is_turned_back(self, d: int, patient: None) -> None:
        records, candidates = rounded_against(np.random.default_rng(d), 8, d)
        wanted = brute_force(records, candidates)
        x, y = (torch.from_numpy(array).bfloat16() for array in (records, candidates))
        coarse = (x @ y.T).float().numpy()
        first = coarse - 0.5 * (candidates.astype(np.float64) ** 2).sum(axis=1)
        assert (first.argmax(axis=1) != wanted).mean() > 0.3  # a trap, and not an empty one
        assert left_of(records, candidates)[np.arange(len(records)), wanted].all()
        assert np.array_equal(nearest_candidates(records, candidates), wanted)

    def test_so_is_what_rounding_turns_round_in_records(self, patient: None) -> None:
        records, candidates = records_rounded_against(np.random.default_rng(8))
        wanted = brute_force(records, candidates)
        rounded = torch.from_numpy(records).bfloat16().float().numpy()
        assert (brute_force(rounded, candidates) != wanted).mean() > 0.9
        assert left_of(records, candidates)[np.arange(len(records)), wanted].all()
        assert np.array_equal(nearest_candidates(records, candidates), wanted)

    def test_only_the_stored_product_is_rounded(self, patient: None) -> None:
        # All numbers are bfloat16's own: what is lost is lost when the product is stored.
        generator = np.random.default_rng(0)
        candidates = generator.integers(-8, 9, (600, 96)).astype(np.float32) / 64
        records = generator.integers(-8, 9, (200, 96)).astype(np.float32) / 64
        made = sieve.sieve_of(candidates, len(records))
        assert made is not None
        assert made.taken < 1e-12
        wanted = brute_force(records, candidates)
        assert left_of(records, candidates)[np.arange(len(records)), wanted].all()
        assert np.array_equal(nearest_candidates(records, candidates), wanted)

    def test_candidates_a_few_units_in_the_last_place_apart(self, patient: None) -> None:
        generator = np.random.default_rng(1)
        candidates = np.repeat(unit(generator, 1, 384), 512, axis=0)
        steps = generator.integers(-3, 4, candidates.shape)
        candidates = np.nextafter(candidates, np.float32(2) * np.sign(steps)).astype(np.float32)
        records = np.concatenate([unit(generator, 60, 384), candidates[::50]])
        assert np.array_equal(
            nearest_candidates(records, candidates), brute_force(records, candidates)
        )

    def test_equal_candidates_go_to_the_lowest_index(self, patient: None) -> None:
        generator = np.random.default_rng(2)
        candidates = np.tile(unit(generator, 256, 48), (3, 1))
        nearest = nearest_candidates(unit(generator, 300, 48), candidates)
        assert nearest.max() < 256

    @pytest.mark.parametrize("exponent", [-18, 0, 12])
    def test_candidates_of_all_lengths(self, exponent: int, patient: None) -> None:
        generator = np.random.default_rng(3)
        lengths = generator.uniform(0.2, 3.0, (600, 1)).astype(np.float32) * 2.0**exponent
        candidates = (unit(generator, 600, 32) * lengths).astype(np.float32)
        scale = np.float32(2.0**exponent) * np.geomspace(1e-3, 900, 200, dtype=np.float32)[:, None]
        records = unit(generator, 200, 32) * scale
        wanted = brute_force(records, candidates)
        assert left_of(records, candidates)[np.arange(len(records)), wanted].all()
        assert np.array_equal(nearest_candidates(records, candidates), wanted)

    def test_records_the_sieve_says_nothing_of(self) -> None:
        generator = np.random.default_rng(4)
        axis = np.eye(1, 24, dtype=np.float32)
        candidates = unit(generator, 600, 24) * np.float32(0.1) + axis
        candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
        records = unit(generator, 700, 24) * np.float32(0.1) + axis
        records[1::9] *= -1.0  # opposite to all
        records[2::9] = 0.0
        records[3::9] *= np.float32(1e6)
        records[4] = np.nan
        records[5] = np.inf
        whole = nearest_neighbor._by_product(records, candidates)
        made = sieve.sieve_of(candidates, len(records))
        assert made is not None
        opened = [made.block(records, *piece, []).open for piece in made.pieces(len(records))]
        assert sum(opened) >= 200
        assert np.array_equal(nearest_candidates(records, candidates), whole)


class TestRandom:
    @staticmethod
    def same(n: int, m: int, d: int, seed: int) -> None:
        """In clusters, as texts are, so that a part of all records has several close candidates."""
        generator = np.random.default_rng(seed)
        centres = unit(generator, 40, d)
        candidates = centres[generator.integers(0, 40, m)] + unit(generator, m, d)
        candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)
        for _ in range(0, n, 50_000):
            count = min(n, 50_000)
            records = centres[generator.integers(0, 40, count)] + unit(generator, count, d)
            records /= np.linalg.norm(records, axis=1, keepdims=True)
            assert np.array_equal(
                nearest_candidates(records, candidates),
                nearest_neighbor._by_product(records, candidates),
            )

    def test_thousands(self, patient: None) -> None:
        self.same(5_000, 700, 64, seed=0)

    @pytest.mark.slow
    @pytest.mark.parametrize(("n", "m", "d"), [(10**6, 600, 48), (50_000, 2048, 384)])
    def test_a_million(self, n: int, m: int, d: int, patient: None) -> None:
        self.same(n, m, d, seed=1)


class TestWhenItIsUsed:
    @pytest.mark.parametrize(
        ("threads", "block"), [(1, sieve._BLOCK_BYTES), (3, sieve._BLOCK_BYTES), (3, 2**16)]
    )
    def test_neither_threads_nor_blocks_matter(
        self, threads: int, block: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        generator = np.random.default_rng(5)
        records, candidates = unit(generator, 900, 32), unit(generator, 520, 32)
        wanted = nearest_neighbor._by_product(records, candidates)
        monkeypatch.setattr(sieve, "_BLOCK_BYTES", block)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            assert np.array_equal(nearest_candidates(records, candidates), wanted)
        finally:
            torch.set_num_threads(before)

    def test_it_is_left_out_where_nothing_is_gained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        generator = np.random.default_rng(7)
        candidates = unit(generator, 512, 8)
        assert sieve.sieve_of(candidates, 1000) is not None
        assert sieve.sieve_of(candidates, 10) is None
        assert sieve.sieve_of(candidates[:100], 1000) is None
        assert sieve.sieve_of(candidates * np.float32(1e30), 1000) is None
        assert sieve.sieve_of(candidates * np.float32(0), 1000) is None
        monkeypatch.setattr(sieve, "is_fast", lambda: False)
        assert sieve.sieve_of(candidates, 1000) is None
