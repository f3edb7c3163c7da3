"""Text to vectors, kept on the node's disk."""

from flower_privsyn.embedding.cache import EmbeddingCache, cached_embed
from flower_privsyn.embedding.company import check_company, require_company
from flower_privsyn.embedding.embedder import (
    Embedder,
    SentenceTransformerEmbedder,
    load_embedder,
)
from flower_privsyn.embedding.records import RecordStore, StoredRecords, content_key
from flower_privsyn.embedding.salvage import check_embeds, embed_each
from flower_privsyn.embedding.tokens import load_tokenizer
from flower_privsyn.files import default_cache_directory

__all__ = [
    "Embedder",
    "EmbeddingCache",
    "RecordStore",
    "SentenceTransformerEmbedder",
    "StoredRecords",
    "cached_embed",
    "check_company",
    "check_embeds",
    "content_key",
    "default_cache_directory",
    "embed_each",
    "load_embedder",
    "load_tokenizer",
    "require_company",
]
