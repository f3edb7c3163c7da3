"""Sets of text against a stored release, with the embedding model of the run it is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.strategies.parts.candidate_text import checked_names, read_sets
from flower_privsyn.strategies.parts.moments import MomentSketch, Ranked

if TYPE_CHECKING:
    from flower_privsyn.embedding import Embedder
    from flower_privsyn.host.progress import Progress


def rank_sets(
    sketch: MomentSketch,
    settings: Mapping[str, Any],
    names: Sequence[str],
    *,
    most: int,
    seed: int,
    progress: Progress,
    embedder: Embedder,
) -> list[Ranked]:
    """Embed sets of text as the run did, and rank them.

    Args:
        sketch: what was released.
        settings: of the run, under their hyphenated keys.
        names: of the sets, as `CandidateText.of` takes them.
        most: samples of each set; 0 for all.
        seed: of their draw.
        progress: shows the work.
        embedder: the run's embedding model.

    Raises:
        DataError: a set cannot be read, or is named twice.
    """
    texts = read_sets(
        checked_names(names),
        tokenizer=embedder.tokenizer,
        max_tokens=int(settings["max-tokens"]),
        most=most,
        seed=seed,
    )
    return sketch.rank(embedded(texts, embedder=embedder, progress=progress), seed=seed)


def embedded(
    texts: Mapping[str, Sequence[str]], *, embedder: Embedder, progress: Progress
) -> dict[str, npt.NDArray[np.float32]]:
    """The embeddings of sets of text, by name.

    Args:
        texts: by name.
        embedder: whose embeddings users were asked about.
        progress: shows the work.
    """
    found = {}
    for name, pieces in texts.items():
        with progress.stage(f"Embed {name}", len(pieces)) as stage:
            found[name] = embedder.embed(pieces, progress=stage.update)
    return found
