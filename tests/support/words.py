"""A generator of words and a trainer for it: POPri run whole, and seen to work, without a model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.training.preference_settings import TrainingReport


class WordGenerator:
    """A generator whose continuations are words of a vocabulary, drawn by seed.

    Its adapters are what `train_words` writes: weights of words. So a method that trains a
    generator can be run whole, and seen to work, without any model.

    Args:
        words: the vocabulary.
        length: words per continuation, >= 1.
    """

    name = "words"

    def __init__(self, words: Sequence[str], *, length: int = 8) -> None:
        self._words = list(dict.fromkeys(words))
        self._length = length

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: Any,
        system: str | None = None,
        adapter: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[str]]:
        """`num_samples` continuations of each prompt; each depends on its prompt and number."""
        weights = _word_weights(adapter)
        logits = np.array([weights.get(word, 0.0) for word in self._words])
        chances = np.exp(logits - logits.max())
        outputs = []
        for prompt in prompts:
            key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest())
            row = []
            for sample in range(num_samples):
                chooser = np.random.default_rng([sampling.seed % 2**63, key, sample])
                drawn = chooser.choice(
                    self._words, size=self._length, p=chances / chances.sum(), replace=True
                )
                row.append(" ".join(drawn))
            outputs.append(row)
            if progress is not None:
                progress(num_samples)
        return outputs


def train_words(
    model: str | Path,
    pairs: Sequence[Any],
    *,
    adapter: Path | None,
    output: Path,
    settings: Any,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Any:
    """Stands for `training.preference.train_preferences`, for `WordGenerator`.

    Words of chosen texts gain weight, those of rejected ones lose it; ends are lines of their own.
    """
    weights = _word_weights(adapter)
    for pair in pairs:
        for text, step in ((pair.chosen, 1.0), (pair.rejected, -1.0)):
            for word in text.partition("\n")[0].split():
                weights[word] = weights.get(word, 0.0) + step / len(pairs)
    if progress is not None:
        progress(1, 1)
    partial = output.with_name(output.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (partial / name).write_text(json.dumps(weights, sort_keys=True))
    partial.rename(output)
    return TrainingReport(loss=0.0, margin=None, accuracy=None, losses=(0.0,))


def _word_weights(adapter: Path | None) -> dict[str, float]:
    if adapter is None:
        return {}
    weights: dict[str, float] = json.loads((adapter / "adapter_config.json").read_text())
    return weights
