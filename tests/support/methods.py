"""Methods with fakes in place of models."""

from __future__ import annotations

from typing import Any

from flower_privsyn.strategies import KernelSketch, KernelSketchConfig
from flower_privsyn.testing import HashEmbedder, ShuffleWords, WordGenerator, train_words
from tests.support.federation import WORDS


def sketching(config: KernelSketchConfig, **parts: Any) -> KernelSketch:
    """The strategy with fakes in place of models."""
    return KernelSketch(
        config,
        embedder=parts.pop("embedder", HashEmbedder()),
        generator=parts.pop("generator", WordGenerator(WORDS)),
        variation=parts.pop("variation", ShuffleWords()),
        trainer=parts.pop("trainer", train_words),
        **parts,
    )


def learning_nothing(model: Any, pairs: Any, **kwargs: Any) -> Any:
    """A trainer whose adapters leave the generator as it is."""
    report = train_words(model, pairs, **kwargs)
    (kwargs["output"] / "adapter_config.json").write_text("{}")
    return report
