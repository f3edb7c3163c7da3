"""The arrays that questions are about, and what a record is, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: What a record of a user can be.
Reads = Literal["embeddings", "tokens", "text"]

#: What stands for a model's fingerprint where records are text.
TEXT_FINGERPRINT: Final = "text"
#: What stands for the numbers in a record there.
TEXT_DIMENSION: Final = 1

#: What the server sends to all users in a round: named arrays, public. Most queries are about
#: "candidates", (m, d) float32.
Broadcast = Mapping[str, npt.NDArray[Any]]

#: What an array must be: its shape, None for any length of at least 1, and its numbers, by types or
#: NumPy's letters of kinds.
Form: TypeAlias = tuple[tuple[int | None, ...], tuple[str, ...]]
