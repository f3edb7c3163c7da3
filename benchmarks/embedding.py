"""Embedding of texts, beside its products and sentence-transformers' own `encode`.

Bundled passages cut to 5 to 400 words. The floor is the products of the model's matrices with the
tokens there are: above it lie padding, attention's softmax, GELU, norms and the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks import Other, Ratio, compared, products
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.embedding import SentenceTransformerEmbedder, load_embedder


def measure(*, texts: int = 100) -> list[Ratio]:
    """Of 100 texts."""
    embedder, written = load_embedder(), passages(texts)
    assert isinstance(embedder, SentenceTransformerEmbedder)
    encode = partial(embedder.model.encode, written, batch_size=32, show_progress_bar=False)
    return compared(
        f"embedding, {texts} texts",
        lambda: embedder.embed(written),
        Other("its products (floor)", products(operations(embedder, written))),
        Other("the library's encode (peer)", encode),
    )


def passages(count: int) -> list[str]:
    """The first bundled passages, cut to 5 to 400 words."""
    words = np.random.default_rng(0).integers(5, 400, count)
    texts = PublicCorpus.find("bundled", setting="").documents()
    return [" ".join(text.split()[:most]) for most, text in zip(words, texts, strict=False)]


def operations(embedder: SentenceTransformerEmbedder, texts: Sequence[str]) -> float:
    """Floating-point operations of an encoder of BERT's form.

    Four square matrices and two of a layer's inner width in each layer, and two products of
    attention.
    """
    config = embedder.model[0].auto_model.config
    wide, inner = config.hidden_size, config.intermediate_size
    lengths = np.array([len(row["input_ids"]) for row in embedder._encode(texts)], dtype=float)
    matrices = (8 * wide**2 + 4 * wide * inner) * lengths.sum()
    return float(config.num_hidden_layers * (matrices + 4 * wide * (lengths**2).sum()))
