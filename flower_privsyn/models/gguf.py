"""What a GGUF file says of itself, read by its library before llama.cpp sees it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.files import sha256_of
from flower_privsyn.models.library import shorten


@dataclass(frozen=True, kw_only=True)
class GGUFHeader:
    """What was found in a file.

    Attributes:
        architecture: as the file names it, such as "llama" or "gemma3".
        parameters: numbers in all its tensors.
        context: tokens that the model was trained on at a time; 0 where the file does not say.
        cache_bytes: that a token takes in a cache of keys and values in half precision.
    """

    architecture: str
    parameters: int
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
        return GGUFHeader(
            architecture=architecture,
            parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
            context=_first(_numbers(reader, architecture, "context_length")),
            cache_bytes=_cache_bytes(reader, architecture),
        )
    except Exception as error:  # whatever its bytes make of the library
        raise ModelError(
            f"{file} is no whole GGUF file ({type(error).__name__}: {shorten(error)})"
        ) from error


def digest_of(path: str | Path) -> str:
    """The sha256 of a file, in hexadecimal digits.

    Args:
        path: the file.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return sha256_of(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(f"GGUF file {path} cannot be read: {reason}") from error


def _numbers(reader: Any, architecture: str, key: str) -> Sequence[int]:
    """The whole numbers of a key: one for all layers, or one for each; () where there are none."""
    field = reader.get_field(f"{architecture}.{key}")
    value = () if field is None else field.contents()
    return [int(number) for number in value] if isinstance(value, Sequence) else [int(value)]


def _first(numbers: Sequence[int]) -> int:
    return numbers[0] if numbers else 0


def _cache_bytes(reader: Any, architecture: str) -> int:
    def numbers(key: str) -> Sequence[int]:
        return _numbers(reader, architecture, key)

    heads = numbers("attention.head_count")
    # llama.cpp, too, takes the width of a head from the first layer.
    width = _first(numbers("embedding_length")) // max(1, _first(heads))
    keys = _first(numbers("attention.key_length")) or width
    values = _first(numbers("attention.value_length")) or width
    shared = numbers("attention.head_count_kv") or heads
    layers = _first(numbers("block_count"))
    in_layers = layers * _first(shared) if len(shared) == 1 else sum(shared)
    return 2 * in_layers * (keys + values)
