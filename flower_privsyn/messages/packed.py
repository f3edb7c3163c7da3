"""Sums on the grid as bytes: as few a number as the largest sum that a node can have needs.

How many is decided by what is public, the question and the size of the node's roster, never by the
sum, so the size of an answer says nothing about it.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, RecordDict

from flower_privsyn.privacy.mechanisms import STEPS

#: What rounding may add to the bound of a sum.
_SLACK: Final = 1.0 + 1e-9


def most_steps(bound: float) -> int:
    """The largest sum within a bound, in steps of the grid.

    Args:
        bound: largest absolute value of a number of the sum, >= 0.
    """
    return math.ceil(bound * STEPS * _SLACK)


def bytes_per_number(bound: float) -> int:
    """How many bytes every number of a sum within a bound takes: 4 below 2, 5 below 512.

    Args:
        bound: largest absolute value of a number of the sum, >= 0, at most 2^31.
    """
    return (most_steps(bound).bit_length() + 1 + 7) // 8


def pack_steps(steps: npt.NDArray[np.int64], *, width: int) -> npt.NDArray[np.uint8]:
    """Write whole numbers with a sign, lowest byte first.

    Args:
        steps: (m,) int64, each within `width` bytes.
        width: bytes of each, 1 to 8 (`bytes_per_number`).

    Returns:
        (m, width).

    Raises:
        ValueError: a number needs more bytes. The sentence does not say which: that is data.
    """
    end = 2 ** (8 * width - 1)
    if len(steps) and not -end <= int(steps.min()) <= int(steps.max()) < end:
        raise ValueError(f"a number of the sum needs more than {width} bytes")
    kept = steps.astype("<i8")
    return np.ascontiguousarray(kept.view(np.uint8).reshape(-1, 8)[:, :width])


def unpack_steps(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Read what `pack_steps` wrote.

    Args:
        packed: (m, width), width 1 to 8.

    Returns:
        (m,) int64.
    """
    length, width = packed.shape
    raised = np.zeros((length, 8), dtype=np.uint8)
    raised[:, 8 - width :] = packed
    # The number stands in the highest bytes: shifting it down copies its sign.
    steps = raised.reshape(-1).view("<i8").astype(np.int64)
    steps >>= 8 * (8 - width)
    return steps


def packed_bytes(content: RecordDict) -> int:
    """Bytes of a message's packed records, with their names."""
    total = 0
    for name, record in content.items():
        # Flower's own count refuses the empty texts that a configuration may hold.
        counted = record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        total += len(name) + counted
    return total
