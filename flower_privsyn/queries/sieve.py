"""Which candidates may lie nearest: a product in bfloat16, and the bound that rules out the others.

Processors with instructions for bfloat16 (AVX-512-BF16, AMX) multiply it two to four times as fast
as float32. It keeps 8 significant bits, too few to name the nearest candidate and enough to rule
out nearly all the others; `nearest_candidates` then looks at the few that are left as exactly as
ever. What is found does not depend on whether this step was taken.

**What is ranked.** argmin |x - y_j|^2 = argmax s_j with s_j = x.y_j - h_j, h_j = (|y_j|^2 - c) / 2
for any c. With c in the middle of all |y_j|^2 the h_j are as small as they can be, and 0 but for
rounding where all candidates have the same length.

**The bound.** Write x', y', h' for the numbers rounded to bfloat16, r = |x - x'| and e = |y - y'|
for what rounding took: not more than 2^-8 of the lengths, measured here row by row, 2^-9.4 as a
rule. By Cauchy-Schwarz

    |s_j - (x'.y'_j - h'_j)| <= r |y_j| + (|x| + r) e_j + |h_j - h'_j|.

Products of two bfloat16 numbers have 16 significant bits and are exact in float32. Adding up d + 1
of them in float32, in any order, each addition off by 2^-23 of its result at most (one unit in the
last place, whatever the rounding mode), is off by (d + 3) 2^-22 (|x'| |y'_j| + |h'_j|) at most.
The sum in float64 that decides in the end may itself be off by
(d + 3) 2^-52 |y_j| (|x| + |y_j|). E, the sum of these with the largest of each over j, bounds the
distance of s_j from v_j, the sum before it is stored. Numbers that a processor flushes to 0 are
worth less than 2^-50 in all, which is added.

The sum is stored as p_j, one of the two bfloat16 numbers beside v_j. For the largest, p > 0,
therefore v >= p (1 - 2^-7). If candidate j lies nearest, s_j is at least that of the largest, so
v_j >= v - 2 E >= p (1 - 2^-7) - 2 E; and p_j >= t, where t is this number rounded down to bfloat16,
because v_j >= t and t is a bfloat16 number. Every candidate with p_j < t is ruled out. Where t is
not positive nothing is, and the record stays open: so t > 0 orders bit patterns as integers, which
numpy compares 16 at a time.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.models.threads import one_thread
from flower_privsyn.queries.once_per_array import once_per_array

#: Bytes of one block of the product, which is read three times and should stay in the cache.
_BLOCK_BYTES = 2**23
#: Records of the first block: after it one knows whether the candidates can be told apart.
_FIRST_ROWS = 256
#: Fewer records or candidates than these are looked at as fast without.
_LEAST_RECORDS = 64
_LEAST_CANDIDATES = 512
#: For more numbers in a row, or longer candidates, the bound is not worked out.
_MOST_NUMBERS = 2**13
_LONGEST = 2.0**20
#: Records longer than so many times the longest candidate stay open.
_MOST_TIMES_LONGER = 2.0**10
#: A product in bfloat16 must take less than this share of PyTorch's own in float32.
_WORTHWHILE = 0.6
#: Covers what float32 loses in a norm of `_MOST_NUMBERS`, and what underflows.
_GENEROUS = 1.0 + 2.0**-10
_UNDERFLOW = 2.0**-50
_NEVER = 2**15 - 1  # above every number's bits


@dataclass(frozen=True)
class Block:
    """The candidates that are left of some records.

    Attributes:
        start: the first record of the block.
        stop: the one behind its last.
        rows: (k,) int64, the record of each pair, counted from `start`, ascending.
        columns: (k,) int64, the candidate of each pair, ascending for each record.
        lengths: (stop - start,) float64, each record's length, rounded up.
        open: how many records have no pair, because nothing is ruled out for them.
    """

    start: int
    stop: int
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.float64]
    open: int


@dataclass(frozen=True)
class Sieve:
    """The candidates, rounded to bfloat16, and what rounding took from them.

    Attributes:
        columns: (d, m) bfloat16 tensor, the candidates; (d + 1, m) with -h' as the last row.
        longest: length of the longest candidate.
        taken: the largest e, the distance of a candidate from its rounded one.
        apart: the largest |h - h'|; with (d, m) columns h' is 0.
        beside: the largest |h'|.
    """

    columns: Any
    longest: float
    taken: float
    apart: float
    beside: float

    def pieces(self, num_records: int) -> list[tuple[int, int]]:
        """First and last record of each block; the first block is small.

        Args:
            num_records: how many there are.
        """
        most = max(1, _BLOCK_BYTES // (2 * self.columns.shape[1]))
        starts = [0, *range(min(most, _FIRST_ROWS), num_records, most)]
        return list(zip(starts, [*starts[1:], num_records], strict=True))

    def block(
        self, records: npt.NDArray[np.float32], start: int, stop: int, spare: list[Any]
    ) -> Block:
        """Rule out candidates for some records.

        Args:
            records: (n, d) float32.
            start: the first record of the block.
            stop: the one behind its last.
            spare: where memory comes from and goes back to; empty at first, of one call with one
                sieve and some records.
        """
        torch = sys.modules["torch"]
        count, d = stop - start, records.shape[1]
        m = self.columns.shape[1]
        try:
            memory = spare.pop()
        except IndexError:
            memory = _Memory(torch, self.pieces(len(records)), d, self.columns)
        memory.exact[:count] = records[start:stop]
        given, numbers = torch.from_numpy(memory.exact[:count]), memory.rounded[:count]
        numbers[:, :d] = given
        lengths = _lengths(torch, given)
        error = self._error(lengths, _lengths(torch, numbers[:, :d].float().sub_(given)), d)
        torch.mm(numbers, self.columns, out=memory.product[:count])
        bits, left = memory.bits[:count], memory.left[:count]
        least = _least_bits(bits.max(axis=1), error)
        least[~(lengths <= _MOST_TIMES_LONGER * self.longest)] = _NEVER
        np.greater_equal(bits, least[:, None], out=left)
        pairs = np.flatnonzero(left)
        spare.append(memory)
        rows = pairs // m
        decided = least != _NEVER
        if not decided.all():
            pairs, rows = pairs[decided[rows]], rows[decided[rows]]
        columns = pairs - rows * m
        return Block(start, stop, rows, columns, lengths, count - int(decided.sum()))

    def _error(
        self, lengths: npt.NDArray[np.float64], taken: npt.NDArray[np.float64], dimension: int
    ) -> npt.NDArray[np.float64]:
        """E of each record, from its length and what rounding took from it."""
        rounded = lengths + taken
        error: npt.NDArray[np.float64] = taken * self.longest
        error += rounded * self.taken + self.apart
        error += (dimension + 3) * (
            2.0**-22 * (rounded * (self.longest + self.taken) + self.beside)
            + 2.0**-52 * self.longest * (lengths + self.longest)
        )
        error += _UNDERFLOW
        return error


class _Memory:
    """What one block is computed in, kept for the next: pages that are new cost time."""

    def __init__(
        self, torch: Any, pieces: list[tuple[int, int]], dimension: int, columns: Any
    ) -> None:
        most = max(stop - start for start, stop in pieces)
        wide, m = columns.shape
        self.exact = np.empty((most, dimension), dtype=np.float32)
        self.rounded = torch.ones((most, wide), dtype=torch.bfloat16, device="cpu")
        self.product = torch.empty((most, m), dtype=torch.bfloat16, device="cpu")
        self.bits = self.product.view(torch.int16).numpy()
        self.left = np.empty((most, m), dtype=np.bool_)


def _lengths(torch: Any, rows: Any) -> npt.NDArray[np.float64]:
    """Length of each row, rounded up."""
    found = torch.linalg.vector_norm(rows, dim=1).numpy().astype(np.float64)
    lengths: npt.NDArray[np.float64] = found * _GENEROUS + _UNDERFLOW
    return lengths


def _least_bits(
    top: npt.NDArray[np.int16], error: npt.NDArray[np.float64]
) -> npt.NDArray[np.int16]:
    """Each record's t as bits, from those of its largest product; `_NEVER` where t <= 0."""
    largest = (top.astype(np.int32) << 16).view(np.float32).astype(np.float64)
    # One part in 2^20 more, so that the conversion to float32 rounds nothing up.
    least = largest * (1.0 - 2.0**-7 - 2.0**-20) - 2.0 * error
    bits = (least.astype(np.float32).view(np.int32) >> 16).astype(np.int16)
    return np.where((least > _UNDERFLOW) & (least < _LONGEST**3), bits, np.int16(_NEVER))


def sieve_of(candidates: npt.NDArray[Any], num_records: int) -> Sieve | None:
    """The sieve for these candidates; None where a product in float32 is the better way.

    That is so on a processor where bfloat16 is not fast, for few or very long candidates, and
    where nothing else in this process has loaded PyTorch. Which it is changes no result.

    Args:
        candidates: (m, d) float32, finite.
        num_records: how many will be asked about.
    """
    m, dimension = candidates.shape
    if num_records < _LEAST_RECORDS or m < _LEAST_CANDIDATES or dimension > _MOST_NUMBERS:
        return None
    return _sieve(candidates) if "torch" in sys.modules and is_fast() else None


@once_per_array
def _sieve(candidates: npt.NDArray[Any]) -> Sieve | None:
    torch = sys.modules["torch"]
    m, dimension = candidates.shape
    squares = np.einsum("md,md->m", candidates, candidates, dtype=np.float64)
    longest = math.sqrt(float(squares.max())) * _GENEROUS
    if not 1.0 / _LONGEST <= longest <= _LONGEST:
        return None
    exact = torch.from_numpy(np.array(candidates, dtype=np.float32))
    halves = 0.5 * (squares - 0.5 * (squares.max() + squares.min()))
    apart = float(np.abs(halves).max())
    # Where lengths differ by no more than float32 rounds, a row of their own is not worth it.
    wide = dimension + (apart > 2.0**-20 * longest**2)
    rounded = torch.empty((m, wide), dtype=torch.bfloat16, device="cpu")
    rounded[:, :dimension] = exact
    taken = float(_lengths(torch, rounded[:, :dimension].float().sub_(exact)).max())
    beside = 0.0
    if wide > dimension:
        rounded[:, -1] = torch.from_numpy(-halves)
        kept = rounded[:, -1].double().numpy()
        apart, beside = float(np.abs(kept + halves).max()), float(np.abs(kept).max())
    return Sieve(rounded.t(), longest, taken, apart, beside)


@cache
def is_fast() -> bool:
    """Whether one thread multiplies bfloat16 faster than float32 here, by a product of each.

    Five times in turn, some milliseconds in all, and the best of each: what else the machine does
    hits both. A library whose product is farther off than the bound allows is not used either.
    """
    torch: Any = importlib.import_module("torch")  # loaded, if perhaps not yet to its end
    generator = np.random.default_rng(0)
    n, m, d = 256, 1024, 384
    exact = [
        torch.from_numpy(generator.standard_normal((rows, d), dtype=np.float32)) for rows in (n, m)
    ]
    rounded = [matrix.bfloat16() for matrix in exact]
    best = {torch.float32: math.inf, torch.bfloat16: math.inf}
    with one_thread():
        for _ in range(6):  # once to warm up
            for left, right in (exact, rounded):
                product = torch.empty((n, m), dtype=left.dtype, device="cpu")
                began = time.perf_counter()
                torch.mm(left, right.t(), out=product)
                best[left.dtype] = min(best[left.dtype], time.perf_counter() - began)
    x, y = (matrix.double().numpy() for matrix in rounded)
    found = product.double().numpy()
    lengths = np.sqrt(np.outer((x**2).sum(axis=1), (y**2).sum(axis=1)))
    allowed = (d + 3) * 2.0**-22 * lengths + 2.0**-7 * np.abs(found)
    as_exact = bool((np.abs(found - x @ y.T) <= allowed).all())
    return as_exact and best[torch.bfloat16] < _WORTHWHILE * best[torch.float32]
