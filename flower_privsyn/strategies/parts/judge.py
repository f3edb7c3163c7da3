"""Which round came nearest to what was released, and whether to go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flower_privsyn.errors import DataError
from flower_privsyn.files import located
from flower_privsyn.queries import KernelMean, mean_features
from flower_privsyn.strategies.parts.preferences import PreferenceConfig
from flower_privsyn.strategies.parts.public_side import PublicSide
from flower_privsyn.strategies.parts.sketch import Sketch

if TYPE_CHECKING:
    from flower_privsyn.host.progress import Progress


def best(distances: Mapping[int, float]) -> int:
    """The round with the smallest distance, the first of equal ones."""
    return min(distances, key=lambda number: (distances[number], number))


def stops(distances: Mapping[int, float], *, patience: int) -> bool:
    """Whether the best of these distances lies `patience` distances back.

    Not rounds: one that was lost has no responses of its own that could have come nearer.

    Args:
        distances: of each round's texts to what is judged by.
        patience: distances without a nearer one after which to stop, >= 1; 0 for never.
    """
    if not patience or not distances:
        return False
    nearest = best(distances)
    return sum(number > nearest for number in distances) >= patience


def validation_sketch(
    config: PreferenceConfig, public: PublicSide, *, query: KernelMean, progress: Progress
) -> Sketch:
    """The kernel mean of the different texts in `validation_text`: for research, not released.

    Args:
        config: names the file.
        public: has the embedder.
        query: the kernel.
        progress: shows the embedding.

    Raises:
        DataError: the file cannot be read, or holds no text.
    """
    from flower_privsyn.data import public_texts

    embedder = public.embedder
    texts = public_texts(
        located(config.validation_text),
        tokenizer=embedder.tokenizer,
        max_tokens=config.max_tokens,
        setting="validation-text",
    )
    if not texts:
        raise DataError(f'validation-text = "{config.validation_text}" holds no text')
    with progress.stage("Embed validation text", len(texts)) as stage:
        embeddings = embedder.embed(texts, progress=stage.update)
    return Sketch(
        query=query,
        total=mean_features(embeddings, query=query),
        num_users=1.0,
        noise_std=0.0,
    )
