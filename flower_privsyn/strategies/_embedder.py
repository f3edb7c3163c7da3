"""The embedding model that server and nodes share, as the server loads it."""

from __future__ import annotations

from flower_privsyn.embedding import Embedder, load_embedder
from flower_privsyn.embedding.batch_invariance import require_batch_invariance
from flower_privsyn.run.method import RecordSource
from flower_privsyn.run.settings import PrivateSumConfig


def embedder_of(config: PrivateSumConfig, given: Embedder | None) -> Embedder:
    """Load the embedding model of a run, and try whether its batch changes a text's embedding.

    Args:
        config: the settings.
        given: in place of `config.embedding_model`.

    Raises:
        ModelError: it is not on this machine, or what is embedded beside a text changes its
            embedding.
        MissingExtraError: what it needs is not installed.
    """
    if given is None:
        given = load_embedder(config.embedding_model, precision=config.embedding_precision)
    require_batch_invariance(given)
    return given


def embeddings_by(embedder: Embedder) -> RecordSource:
    """What makes the records of questions about embeddings."""
    return RecordSource(fingerprint=embedder.fingerprint, dimension=embedder.dimension)
