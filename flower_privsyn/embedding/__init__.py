"""Text to vectors, kept on the node's disk."""

from flower_privsyn.embedding.cache import EmbeddingCache, cached_embed
from flower_privsyn.embedding.embedder import (
    Embedder,
    SentenceTransformerEmbedder,
    load_embedder,
)

__all__ = [
    "Embedder",
    "EmbeddingCache",
    "SentenceTransformerEmbedder",
    "cached_embed",
    "load_embedder",
]
