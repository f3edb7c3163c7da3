"""The tokenizer of an embedding model, without the model."""

from __future__ import annotations

import hashlib
from typing import Any

from flower_privsyn.embedding.embedder import model_folder
from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.models import BUNDLED_FOLDER, BUNDLED_MODELS

_FILE = "tokenizer.json"


def load_tokenizer(name: str) -> tuple[Any, str]:
    """Load the fast tokenizer of a model by name or path; its weights are not read.

    Args:
        name: As for `load_embedder`, or that of a bundled language model.

    Returns:
        A ``tokenizers.Tokenizer``, and its fingerprint: equal ones cut and count alike.

    Raises:
        MissingExtraError: If tokenizers is not installed.
        ModelError: If there is no such model, or it has no fast tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError(
            'Reading tokens needs tokenizers: pip install "flower-privsyn[client]".'
        ) from error
    folder = BUNDLED_FOLDER / name if name in BUNDLED_MODELS else model_folder(name)
    path = folder / _FILE
    try:
        content = path.read_bytes()
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain ones
        raise ModelError(
            f"{path} cannot be read as a tokenizer ({type(error).__name__})."
        ) from None
    # Settings of passes through the model, which are not asked for here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, f"tokens-{hashlib.blake2b(content, digest_size=16).hexdigest()}"
