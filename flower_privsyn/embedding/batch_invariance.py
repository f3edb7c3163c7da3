"""Whether an embedder gives a text the same bits whatever it is embedded with.

If it does not, one user's text moves the embedding of another's, and with it their votes: what one
user adds to a sum is then more than the query's clip norm, and the epsilon of the ledger is wrong.
Matrix products are where it happens: a library adds up in another order for another number of rows,
another place of a row, or another number of threads. `SentenceTransformerEmbedder` leaves it no
choice; this module asks the machine, once, before anything is spent.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.embedding.embedder import ROWS, Embedder
from flower_privsyn.embedding.machine import device_of, machine_digest, threads
from flower_privsyn.errors import ModelError
from flower_privsyn.files import expanded, own_folder

#: Another number when the probes or their batches change: machines are then asked anew.
_VERSION: Final = 2
_FOLDER: Final = "batch_invariance"
_WORDS: Final = (
    "the river court school tax engine of light and paper market a ruling was price with forest in "
    "teacher protein to village rocket summer letter bridge winter question music"
)

_passed: set[str] = set()


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

    Some thirty short forward passes (`python -m benchmarks.embedding` measures them). That no bit
    moves here is evidence, not proof; the proof is in how the embedder is built (*Batch invariance*
    of `SentenceTransformerEmbedder`).

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


def require_batch_invariance(embedder: Embedder, directory: str | Path) -> None:
    """`check_batch_invariance`, once for a model, a device and an environment of a machine.

    That it was passed is remembered in this process, and in the directory for all others.

    Args:
        embedder: any embedder.
        directory: the node's cache. Where it cannot be written, or somebody else can write it,
            every process asks for itself.

    Raises:
        ModelError: as `check_batch_invariance`.
    """
    kind = f"{type(embedder).__module__}.{type(embedder).__qualname__}"
    here = machine_digest(device_of(embedder))
    content = f"{_VERSION} {kind} {embedder.fingerprint} {here} {threads()}"
    name = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    if name in _passed:
        return
    folder = expanded(directory) / _FOLDER
    try:
        for place in (folder.parent, folder):
            own_folder(place)
        note = folder / name  # this user alone can write here: what stands here can be believed
        if not note.is_file():
            check_batch_invariance(embedder)
            note.touch(mode=0o600)
    except OSError:
        check_batch_invariance(embedder)
    _passed.add(name)


def _bits(embedder: Embedder, texts: list[str]) -> NDArray[np.uint32]:
    """Vectors as bit patterns, so that no two values are equal that are not the same."""
    vectors = np.ascontiguousarray(embedder.embed(texts), dtype=np.float32)
    if vectors.shape != (len(texts), embedder.dimension):
        raise ModelError(
            f"The embedder must return shape ({len(texts)}, {embedder.dimension}), "
            f"got {vectors.shape}."
        )
    return vectors.view(np.uint32)
