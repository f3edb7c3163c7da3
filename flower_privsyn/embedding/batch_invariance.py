"""Whether an embedder gives a text the same bits whatever it is embedded with.

If it does not, one user's text moves the embedding of another's, and with it their votes: what one
user adds to a sum is then more than the query's clip norm, and the epsilon of the ledger is wrong.
Matrix products are where it happens: a library adds up in another order for another number of rows,
another place of a row, or another number of threads. `SentenceTransformerEmbedder` leaves it no
choice; this module asks the machine, once, before anything is spent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.embedding.embedder import ROWS, Embedder
from flower_privsyn.embedding.machine import device_of
from flower_privsyn.errors import ModelError

_WORDS: Final = (
    "the river court school tax engine of light and paper market a ruling was price with forest in "
    "teacher protein to village rocket summer letter bridge winter question music"
)

_passed: set[tuple[type, str, str]] = set()


def probe_texts() -> list[str]:
    """Public texts of seven and of thirty words, `ROWS` of each, no two alike."""
    chooser = random.Random(0)
    return [
        " ".join(chooser.choices(_WORDS.split(), k=count)) for count in (7, 30) for _ in range(ROWS)
    ]


def probe_batches(count: int) -> Iterator[tuple[str, list[list[int]]]]:
    """Ways to embed `count` texts: a name, and the texts of each call, by their numbers.

    Each of the first `ROWS` texts comes to every row of a forward pass at least once.

    Args:
        count: texts, at least `ROWS` of the first length before those of others.
    """
    everyone = list(range(count))
    first, rest = everyone[:ROWS], everyone[ROWS:]
    yield "alone", [[number] for number in everyone[::3]]
    yield "in fives", [everyone[at : at + 5] for at in range(0, count, 5)]
    yield "reversed", [everyone[::-1]]
    yield "shuffled", [random.Random(1).sample(everyone, count)]
    yield "in every place", [first[at:] + first[:at] for at in range(1, ROWS)] + [rest[3:]]


def check_batch_invariance(embedder: Embedder) -> None:
    """Refuse an embedder whose vectors depend on what else is embedded with a text.

    Some thirty short forward passes. That no bit moves here is evidence, not proof; the proof is in
    how the embedder is built (*Batch invariance* of `SentenceTransformerEmbedder`).

    Args:
        embedder: any embedder, your own included.

    Raises:
        ModelError: a text's vector differs in some batch from the one it has among all probes, in
            any bit, or the embedder does not return one vector per text; nothing has been spent.
    """
    texts = probe_texts()
    together = _bits(embedder, texts)
    moved = []
    for name, calls in probe_batches(len(texts)):
        differing: set[int] = set()
        for numbers in calls:
            vectors = _bits(embedder, [texts[number] for number in numbers])
            rows = (vectors != together[numbers]).any(axis=1)
            differing.update(np.asarray(numbers)[rows].tolist())
        if differing:
            moved.append(f"{len(differing)} {name}")
    if moved:
        raise ModelError(
            f"On this machine the embedder {type(embedder).__name__} gives a text other bits in "
            f"another batch (texts that moved of {len(texts)}: {', '.join(moved)}), so that one "
            "user's text would move another user's answer and the epsilon would not hold: use "
            "another precision, another device, or an embedder that treats every text by itself."
        )


def require_batch_invariance(embedder: Embedder) -> None:
    """`check_batch_invariance`, once in a process for a model and a device.

    Args:
        embedder: any embedder.

    Raises:
        ModelError: as `check_batch_invariance`.
    """
    asked = (type(embedder), embedder.fingerprint, device_of(embedder))
    if asked not in _passed:
        check_batch_invariance(embedder)
        _passed.add(asked)


def _bits(embedder: Embedder, texts: list[str]) -> NDArray[np.uint32]:
    """Vectors as bit patterns, so that no two values are equal that are not the same."""
    vectors = np.ascontiguousarray(embedder.embed(texts), dtype=np.float32)
    if vectors.shape != (len(texts), embedder.dimension):
        raise ModelError(
            f"The embedder must return shape ({len(texts)}, {embedder.dimension}), "
            f"got {vectors.shape}."
        )
    return vectors.view(np.uint32)
