"""What a GGUF file says of itself, read by its library before llama.cpp sees it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.models.library import shorten

#: Tensors whose products are what a cache holds of a token; the last one has the query's as well.
_CACHED: Final = ("attn_k.weight", "attn_v.weight", "attn_qkv.weight")


@dataclass(frozen=True, kw_only=True)
class GGUFHeader:
    """What was found in a file.

    Attributes:
        context: tokens that the model was trained on at a time; 0 where the file does not say.
        cache_bytes: that a token takes in a cache of keys and values in half precision.
    """

    context: int
    cache_bytes: int


def read_gguf(path: str | Path) -> GGUFHeader:
    """Read what a GGUF file says, all of whose tensors it must hold.

    Args:
        path: the file.

    Raises:
        ModelError: there is no such file, or it is not whole.
        MissingExtraError: gguf is not installed.
    """
    file = Path(path)
    if not file.is_file():
        raise ModelError(f"GGUF file {file} does not exist")
    try:
        library: Any = importlib.import_module("gguf")
    except ImportError as error:
        raise MissingExtraError(
            f"{file.name} is read with gguf, which is not installed: "
            "pip install 'flower-privsyn[gguf]'"
        ) from error
    try:
        reader = library.GGUFReader(file)
        architecture = str(reader.get_field("general.architecture").contents())
        context = reader.get_field(f"{architecture}.context_length")
        cached = [tensor for tensor in reader.tensors if tensor.name.endswith(_CACHED)]
        return GGUFHeader(
            context=0 if context is None else int(context.contents()),
            cache_bytes=2 * sum(int(tensor.shape[-1]) for tensor in cached),
        )
    except Exception as error:  # whatever its bytes make of the library
        raise ModelError(
            f"{file} is no whole GGUF file ({type(error).__name__}: {shorten(error)})"
        ) from error
