"""Model deltas of training on documents that each stand after a condition of their own.

CTCL's question. Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without
Finetuning Billion-Scale LLMs" (2025), section 3.3: the condition of a private document is made of
the keywords of its topic, and the generator learns to write the document after it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.queries.model_delta import ModelDelta
from flower_privsyn.queries.once_per_array import all_finite
from flower_privsyn.queries.query import Broadcast

_SEPARATOR = "\0"

LearnEnds = Literal["documents", "samples"]


@dataclass(frozen=True, kw_only=True)
class ConditionalDelta(ModelDelta):
    """How far a user's training on (condition, document) pairs moves the model, clipped as a whole.

    The broadcast holds, beside the parameters, a point in the embedding space and a text for every
    topic. The node embeds each document and trains on it after the text of the nearest point; only
    the document is predicted. Which texts those are does not leave the node but in the update.

    Formal guarantee:
        That of `ModelDelta`: whatever a document's condition, a user's whole update is clipped.

    References:
        Tan et al. 2025 (CTCL), section 3.3.
    """

    learn_ends: Annotated[
        LearnEnds,
        'after what the model learns that a text ends: "documents", where one does; "samples", '
        "after each of them, of which most may be cut off.",
    ] = "documents"

    name: ClassVar[str] = "conditional_delta"
    conditioned: ClassVar[bool] = True

    def check(self, broadcast: Broadcast, *, dimension: int) -> None:
        """Refuse parameters of another model, and conditions that do not fit their points."""
        asked = dict(broadcast)
        centres, packed = asked.pop("centres", None), asked.pop("conditions", None)
        super().check(asked, dimension=dimension)
        if centres is None or packed is None:
            raise ValueError(f"{self.name} is asked about centres and conditions")
        if centres.ndim != 2 or len(centres) == 0 or centres.dtype != np.float32:
            raise ValueError(f"centres must be (k, d) float32 with k >= 1, got {centres.shape}")
        if not all_finite(centres):
            raise ValueError("centres must be finite")
        if len(unpack_conditions(packed)) != len(centres):
            raise ValueError("there must be a condition for every centre")


def pack_conditions(conditions: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Texts as an array that a broadcast can hold.

    Raises:
        ValueError: a text holds the character that separates them.
    """
    if any(_SEPARATOR in text for text in conditions):
        raise ValueError("a condition must not hold the character of code 0")
    return np.frombuffer(_SEPARATOR.join(conditions).encode(), dtype=np.uint8)


def unpack_conditions(packed: npt.NDArray[np.uint8]) -> list[str]:
    """The texts of `pack_conditions`.

    Raises:
        ValueError: it is no such array.
    """
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError("conditions must be bytes")
    return packed.tobytes().decode().split(_SEPARATOR)


def conditioned_fingerprint(model: str, embedder: str) -> str:
    """What server and nodes must agree on: the model that is trained, and what finds conditions.

    Args:
        model: fingerprint of the model.
        embedder: fingerprint of the embedding model.
    """
    return hashlib.sha256(f"conditions {model} {embedder}".encode()).hexdigest()
