"""Text to vectors, kept on the node's disk."""

from flower_privsyn.embedding.batch_invariance import (
    check_batch_invariance,
    require_batch_invariance,
)
from flower_privsyn.embedding.embedder import (
    Embedder,
    SentenceTransformerEmbedder,
    load_embedder,
    load_tokenizer,
)
from flower_privsyn.embedding.records import (
    RecordStore,
    StoredRecords,
    content_key,
    embed_texts,
)

__all__ = [
    "Embedder",
    "RecordStore",
    "SentenceTransformerEmbedder",
    "StoredRecords",
    "check_batch_invariance",
    "content_key",
    "embed_texts",
    "load_embedder",
    "load_tokenizer",
    "require_batch_invariance",
]
