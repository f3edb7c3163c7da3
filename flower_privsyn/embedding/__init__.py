"""Text to vectors, kept on the node's disk.

May import `models` and `privacy`.
"""

from flower_privsyn.embedding.batch_invariance import check_batch_invariance
from flower_privsyn.embedding.embedder import (
    Embedder,
    SentenceTransformerEmbedder,
    load_embedder,
    load_tokenizer,
)

__all__ = [
    "Embedder",
    "SentenceTransformerEmbedder",
    "check_batch_invariance",
    "load_embedder",
    "load_tokenizer",
]
