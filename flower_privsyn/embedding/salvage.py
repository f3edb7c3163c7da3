"""Embedding many texts, when a few of them are more than the model takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.embedding.embedder import Embedder
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import quarantine


def check_embeds(embedder: Embedder) -> None:
    """Have a model embed public text, before it is known whether there is any other.

    Raises:
        DataError: If it returns another shape than its dimension promises.
        BaseException: Whatever else it raises.
    """
    _embedded(embedder, [quarantine.PROBE], None)


def embed_each(
    embedder: Embedder,
    texts: Sequence[str],
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts; a text that the model fails on gets a row of NaN, and the others theirs.

    All at once, and in ever smaller parts only where that fails. Call `check_embeds` before: a
    model that embeds nothing at all gives NaN alone.

    Args:
        embedder: The model.
        texts: The n texts.
        progress: Called with the number of texts done since the last call; n in total.

    Returns:
        float32 (n, d), in order.
    """
    done = 0

    def count(steps: int) -> None:
        nonlocal done
        # What was done before a failure is done again, and counts once.
        steps = min(steps, len(texts) - done)
        done += steps
        if progress is not None and steps > 0:
            progress(steps)

    rows = quarantine.spare(list(texts), lambda part: _embedded(embedder, part, count))
    result = np.full((len(texts), embedder.dimension), np.nan, dtype=np.float32)
    for place, row in enumerate(rows):
        if row is not None:
            result[place] = row
    count(len(texts) - done)
    return result


def _embedded(
    embedder: Embedder, texts: Sequence[str], progress: Callable[[int], None] | None
) -> NDArray[np.float32]:
    vectors = np.asarray(embedder.embed(texts, progress=progress), dtype=np.float32)
    if vectors.shape != (len(texts), embedder.dimension):
        raise DataError(
            f"The embedder must return shape ({len(texts)}, {embedder.dimension}), got "
            f"{vectors.shape}."
        )
    return vectors
