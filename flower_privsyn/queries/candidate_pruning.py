"""Candidate pruning: a product in bfloat16 rules out nearly all candidates of a record.

A fast path that a reader of what votes mean may skip: with it and without it `nearest_candidates`
returns the same. Processors with instructions for bfloat16 multiply it four times as fast as
float32. Its 8 significant bits cannot name the nearest of a thousand candidates, but rule out all
except two or so; only these are multiplied in float32.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.queries.arrays import Float32Array, Float64Array, IntArray
from flower_privsyn.queries.query import once_per_array

#: Pairs of a record and a candidate that are multiplied at once, so that they stay in the cache.
_PAIRS = 256


def pays(num_candidates: int) -> bool:
    """Whether pruning saves time, however many records there are: it is tried on a public one.

    It does for at least 512 candidates, where PyTorch is loaded already and finds AVX-512-BF16 or
    AMX-BF16; the bound is proven for these and for their emulation.
    """
    if num_candidates < 512:
        return False
    # Newer versions of PyTorch say; in a thread that imports it only now it is not all there.
    cpu = getattr(sys.modules.get("torch"), "cpu", None)
    read: Any = getattr(cpu, "get_capabilities", dict)
    return any(read().get(flag) for flag in ("avx512_bf16", "amx_bf16"))


def possible(
    left: Float32Array, lengths: Float64Array, right: Float32Array
) -> tuple[npt.NDArray[np.bool_], IntArray, Float32Array]:
    """The candidates that can be nearest to each record, and their products in float32.

    Args:
        left: (n, d + 1), records x with a 1 behind them; d at most 2^20.
        lengths: (n,) of the rows of `left`.
        right: (m, d + 1), candidates y with -|y|^2 / 2 behind them, rounded to float32.

    Returns:
        (n,) of which k records are true: the others kept too many candidates, or could not be
        decided; (k, w) of these the candidates, ascending, then any; (k, w) of `left @ right.T`
        what belongs to them, then -inf.
    """
    # Ranked by s_j = x.y_j + h_j, h_j = (max |y|^2 - |y_j|^2) / 2 >= 0, that is s of
    # `nearest_candidates` and a constant. With x', y', h' for the numbers in bfloat16 (h' is the
    # sum of two), L for the longest candidate, and B = |(x, 1)| |(L, L^2 / 2)| >= |x| L + L^2 / 2:
    #   rounding    |x.y - x'.y'| <= |x - x'| L + |x'| max |y - y'|   (Cauchy-Schwarz; measured)
    #               |h - h'| <= (2^-16 + 2^-23) B
    #   adding up   x'.y' + h' has d + 2 terms, exact in float32; added in any order, each addition
    #               off by 2^-23 of its result at most (any rounding, fused or not), it is off by
    #               (d + 2) 2^-22 B at most, which leaves room for |x'| |y'| > |x| |y|
    #   float64     s as it decides in the end, and the lengths here: below 2^-22 B
    #   underflow   numbers flushed to 0, each below 2^-126: below 1e-30 (|(x, 1)| + L)
    # `error`, their sum, bounds how far the sum v_j that is stored as p_j is from s_j. A p > 0 is
    # one of the two bfloat16 numbers beside v, so v >= (1 - 2^-7) p. For the nearest candidate
    # s_j is largest, hence v_j >= v - 2 error >= (1 - 2^-7) p - 2 error with the largest p. This
    # is above `least`, by enough for the conversion of `least` to float32; cut off to bfloat16 it
    # is `lowest`, and p_j >= lowest, since storing is monotone. Above 1e-30 nothing stored is
    # flushed, and bits order as numbers do. Where B < 1e37 no partial sum overflows.
    torch: Any = sys.modules["torch"]
    points, longest, points_off = _in_bfloat16(right)
    rounded = torch.ones((len(left), len(points)), dtype=torch.bfloat16, device="cpu")
    rounded[:, :-1] = torch.from_numpy(left)
    bits: npt.NDArray[np.int16] = torch.mm(rounded, points).view(torch.int16).numpy()
    off = _lengths(rounded[:, :-1].float().sub_(torch.from_numpy(left))).numpy()
    bound = lengths * math.hypot(longest, 0.5 * longest**2)
    error = off * longest + (lengths + off) * points_off
    error += (len(points) + 80) * 2.0**-22 * bound + 1e-30 * (lengths + longest)
    top = (bits.max(axis=1).astype(np.int32) << 16).view(np.float32)
    least = 0.992 * top - 2.0 * error
    sure = (least > 1e-30) & (bound < 1e37)  # false for NaN and Inf as well
    lowest = np.where(sure, least, np.inf).astype(np.float32).view(np.int32) >> 16
    likely = np.flatnonzero(bits >= lowest.astype(np.int16)[:, None])
    rows, columns = np.divmod(likely, len(right))
    counts = np.bincount(rows, minlength=len(left))
    sure &= counts <= max(8, len(right) // 64)
    kept = sure[rows]
    rows, columns = rows[kept], columns[kept]
    products = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        np.einsum("pd,pd->p", left[rows[pairs]], right[columns[pairs]], out=products[pairs])
    counts = counts[sure]
    filled = np.arange(counts.max(initial=1)) < counts[:, None]
    candidates = np.zeros(filled.shape, dtype=np.int64)
    scores = np.full(filled.shape, -np.inf, dtype=np.float32)
    candidates[filled], scores[filled] = columns, products
    return sure, candidates, scores


@once_per_array
def _in_bfloat16(right: Float32Array) -> tuple[Any, float, float]:
    """(d + 2, m) of y' and the two parts of h'; the longest |y|, and the largest |y - y'|."""
    torch: Any = sys.modules["torch"]
    exact = torch.tensor(right, device="cpu")
    halves = exact[:, -1] - exact[:, -1].min()
    points = torch.column_stack([exact[:, :-1], halves, halves]).bfloat16()
    points[:, -1] = halves - points[:, -2]
    off = _lengths(points[:, :-2].float().sub_(exact[:, :-1]))
    return points.t(), float(_lengths(exact[:, :-1]).max()), float(off.max())


def _lengths(rows: Any) -> Any:
    """Of each row of a tensor, in float64."""
    return rows.norm(dim=1, dtype=sys.modules["torch"].float64)
