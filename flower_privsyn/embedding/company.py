"""Whether an embedder gives a text the same bits whatever it is embedded with.

If it does not, one user's text moves the embedding of another's, and with it their votes: what one
user adds to a sum is then more than the query's clip norm, and the epsilon of the ledger is wrong.
Matrix products are where it happens: a library adds up in another order for another number of rows,
another place of a row, or another number of threads. `SentenceTransformerEmbedder` leaves it no
choice; this module asks the machine, once, before anything is spent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.embedding.embedder import ROWS, Embedder
from flower_privsyn.embedding.machine import device_of, machine_digest, threads
from flower_privsyn.errors import ModelError
from flower_privsyn.files import expanded, own_folder

#: Another number when the probes or the companies change: machines are then asked anew.
_VERSION = 1
_FOLDER = "company"
_WORDS = (
    "the river court school tax engine of light and paper market a ruling was price with forest in "
    "teacher protein to village rocket summer letter bridge winter question music"
)

_passed: set[str] = set()


def probe_texts(per_width: int = ROWS, *, words: Sequence[int] = (7, 30)) -> list[str]:
    """Public texts of a few lengths, no two alike.

    Args:
        per_width: texts of each length.
        words: the lengths.
    """
    chooser = random.Random(0)
    return [
        " ".join(chooser.choices(_WORDS.split(), k=count))
        for count in words
        for _ in range(per_width)
    ]


def companies(count: int, per_width: int) -> Iterator[tuple[str, list[list[int]]]]:
    """Ways to embed `count` texts: a name, and the texts of each call, by their numbers.

    Every text comes to every row of a forward pass at least once for the first length, and to
    several for the others; without rows, behind different numbers of tokens.

    Args:
        count: texts, lengths one after another.
        per_width: texts of each length.
    """
    everyone = list(range(count))
    first, rest = everyone[:per_width], everyone[per_width:]
    yield "alone", [[number] for number in everyone[::3]]
    yield "in fives", [everyone[at : at + 5] for at in range(0, count, 5)]
    yield "reversed", [everyone[::-1]]
    shuffled = everyone.copy()
    random.Random(1).shuffle(shuffled)
    yield "shuffled", [shuffled]
    yield "in every place", [first[at:] + first[:at] for at in range(1, per_width)] + [rest[3:]]


def moved_by_company(
    embedder: Embedder, texts: Sequence[str] | None = None, *, per_width: int = ROWS
) -> dict[str, int]:
    """Embed texts together and in other companies, and count those of which a bit moves.

    Args:
        embedder: any embedder.
        texts: the probes; None takes 16 short public ones.
        per_width: how many of them have one length.

    Returns:
        For each company the number of texts whose vector differs from the one it has among all
        texts, in any bit and in any call.

    Raises:
        ModelError: the embedder does not return one vector per text.
    """
    texts = probe_texts() if texts is None else list(texts)
    together = _bits(embedder, texts)
    moved = {}
    for name, calls in companies(len(texts), per_width):
        differing: set[int] = set()
        for numbers in calls:
            vectors = _bits(embedder, [texts[number] for number in numbers])
            rows = (vectors != together[numbers]).any(axis=1)
            differing.update(np.asarray(numbers)[rows].tolist())
        moved[name] = len(differing)
    return moved


def check_company(embedder: Embedder) -> None:
    """Refuse an embedder whose vectors depend on what else is embedded with a text.

    Some thirty short forward passes: 1.7 CPU seconds for all-MiniLM-L6-v2 in float32 on a 2-core
    AVX-512 CPU, 0.9 in bfloat16 (`python -m benchmarks.embedding`). That no bit moves here is
    evidence, not proof; the proof is in how the embedder is built (*Reproducibility* of
    `SentenceTransformerEmbedder`).

    Args:
        embedder: any embedder, your own included.

    Raises:
        ModelError: a text's vector differs in some company; nothing has been spent.
    """
    moved = {name: count for name, count in moved_by_company(embedder).items() if count}
    if moved:
        found = ", ".join(f"{count} {name}" for name, count in moved.items())
        raise ModelError(
            f"On this machine the embedder {type(embedder).__name__} gives a text other bits in "
            f"other company (texts that moved of {len(probe_texts())}: {found}), so that one "
            "user's text would move another user's answer and the epsilon would not hold: use "
            "another precision, another device, or an embedder that treats every text by itself."
        )


def require_company(embedder: Embedder, directory: str | Path) -> None:
    """`check_company`, once for a model, a precision, a device and an environment of a machine.

    That it was passed is remembered in this process, and in the directory for all others; of many
    processes that begin at once, one asks and the others wait for it.

    Args:
        embedder: any embedder.
        directory: the node's cache. Where it cannot be written, or somebody else can write it,
            every process asks for itself.

    Raises:
        ModelError: as `check_company`.
    """
    kind = f"{type(embedder).__module__}.{type(embedder).__qualname__}"
    here = machine_digest(device_of(embedder))
    content = f"{_VERSION} {kind} {embedder.fingerprint} {here} {threads()}"
    name = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
    if name in _passed:
        return
    passed = expanded(directory) / _FOLDER / name
    with _alone(passed.parent) as ours:
        if not (ours and passed.is_file()):
            check_company(embedder)
            if ours:
                with contextlib.suppress(OSError):
                    passed.touch(mode=0o600)
    _passed.add(name)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Let one process of the machine in at a time, where the folder can be written.

    Gives whether this user alone can write it, so that what stands there can be believed.
    """
    ours = False
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            for place in (folder.parent, folder):
                own_folder(place)
            ours = True
            lock = stack.enter_context((folder / ".lock").open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield ours


def _bits(embedder: Embedder, texts: list[str]) -> NDArray[np.uint32]:
    """Vectors as bit patterns, so that no two values are equal that are not the same."""
    vectors = np.ascontiguousarray(embedder.embed(texts), dtype=np.float32)
    if vectors.shape != (len(texts), embedder.dimension):
        raise ModelError(
            f"The embedder must return shape ({len(texts)}, {embedder.dimension}), "
            f"got {vectors.shape}."
        )
    return vectors.view(np.uint32)
