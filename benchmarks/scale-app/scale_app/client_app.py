"""The nodes: the client app of the package, with a model that costs nothing if one likes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.client_apps.node_users import default_embedder
from flower_privsyn.embedding import Embedder

DIMENSION = 384


class PseudoEmbedder:
    """Unit vectors of all-MiniLM-L6-v2's length, drawn by a hash of the text.

    A round takes equally long whatever the numbers are. What embedding costs is measured by
    itself and paid once in the life of a cache.
    """

    dimension = DIMENSION
    fingerprint = f"pseudo-{DIMENSION}-whole"

    @property
    def tokenizer(self) -> Any:
        """One token per text: cutting costs nothing either, and every document is one sample."""
        from tokenizers import Tokenizer, models

        return Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]:
        """(n, 384) float32."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            generator = np.random.default_rng(int.from_bytes(digest, "little"))
            vectors[row] = generator.standard_normal(self.dimension, dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if progress is not None:
            progress(len(texts))
        return vectors


def embedder(name: str, precision: str) -> Embedder:
    """The pseudo-embedder, or a real model by name."""
    return PseudoEmbedder() if name == "pseudo" else default_embedder(name, precision)


app = create_client_app(embedder=embedder)
