"""Embedding many texts, when a few of them are more than the model takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.embedding.embedder import Embedder
from flower_privsyn.errors import DataError
from flower_privsyn.privacy import quarantine


def embed_each(
    embedder: Embedder,
    texts: Sequence[str],
    progress: Callable[[int], None] | None = None,
    *,
    checked: bool = False,
) -> NDArray[np.float32]:
    """Embed texts; a text that the model fails on gets a row of NaN, and the others theirs.

    Public text first, which says whether the model can embed at all; then all at once, and in ever
    smaller parts only where that fails.

    Args:
        embedder: The model.
        texts: The n texts.
        progress: Called with the number of texts done since the last call; n in total.
        checked: Whether it has embedded public text just before.

    Returns:
        float32 (n, d), in order.

    Raises:
        DataError: If the embedder returns another shape than its dimension promises, whatever
            the text.
        BaseException: Whatever else the embedder raises about public text.
    """
    done = 0

    def count(steps: int) -> None:
        nonlocal done
        # What was done before a failure is done again, and counts once.
        steps = min(steps, len(texts) - done)
        done += steps
        if progress is not None and steps > 0:
            progress(steps)

    def embed(
        part: Sequence[str], progress: Callable[[int], None] | None = count
    ) -> NDArray[np.float32]:
        vectors = np.asarray(embedder.embed(part, progress=progress), dtype=np.float32)
        if vectors.shape != (len(part), embedder.dimension):
            raise DataError(
                f"The embedder must return shape ({len(part)}, {embedder.dimension}), got "
                f"{vectors.shape}."
            )
        return vectors

    if not checked:
        quarantine.check(functools.partial(embed, progress=None), probe=quarantine.PROBE)
    rows = quarantine.spare(list(texts), embed)
    result = np.full((len(texts), embedder.dimension), np.nan, dtype=np.float32)
    for place, row in enumerate(rows):
        if row is not None:
            result[place] = row
    count(len(texts) - done)
    return result
