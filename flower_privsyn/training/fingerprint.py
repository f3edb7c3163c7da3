"""What trained weights and what a model says of texts depend on, as JSON can hold it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.environment import library_versions
from flower_privsyn.models import resolve_model

#: Bytes of a file that are read whole; of a larger one as many blocks of `_BLOCK` bytes.
_WHOLE = 2**28
_BLOCK = 2**20


def of_training(
    model: str | Path, texts: Iterable[str], settings: Any, seed: int, *libraries: str
) -> dict[str, Any]:
    """Everything that trained weights depend on, short of the machine, as JSON can hold it.

    Args:
        model: A bundled short name, a folder or a hub name.
        texts: What it is trained on.
        settings: A dataclass.
        seed: Of the training.
        libraries: Whose versions matter, besides those of PyTorch and Transformers.
    """
    return {
        "model": weight_files(resolve_model(model)),
        "texts": digest_of_texts(texts),
        "settings": asdict(settings),
        "seed": seed,
        "versions": library_versions("torch", "transformers", *libraries),
    }


def weight_files(model: str) -> list[list[str | int]] | str:
    """The files of a model: name, bytes and digest of each.

    Not their times: a copy is the same model, and there are file systems that forget fractions of
    a second when a file leaves the memory. Of files above 256 MiB the digest is of blocks spread
    over the file, which notices other weights in any part of a 256th of it.

    Args:
        model: A folder, or a name.

    Returns:
        The name as it is where there is no such folder, or no file in it.
    """
    folder = Path(model)
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    found: list[list[str | int]] = [
        [file.name, file.stat().st_size, _digest(file)] for file in files if file.is_file()
    ]
    return found or model


def _digest(file: Path) -> str:
    size = file.stat().st_size
    blocks = -(-size // _BLOCK)
    most = _WHOLE // _BLOCK
    places = (
        range(blocks) if blocks <= most else [i * (blocks - 1) // (most - 1) for i in range(most)]
    )
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as opened:
        for place in places:
            opened.seek(place * _BLOCK)
            digest.update(opened.read(_BLOCK))
    return digest.hexdigest()


def digest_of_texts(texts: Iterable[str]) -> str:
    """A digest of texts in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


def digest_of_rows(rows: Iterable[Sequence[int]]) -> str:
    """A digest of rows of token ids in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(len(row).to_bytes(8, "big") + np.asarray(row, dtype="<i8").tobytes())
    return digest.hexdigest()
