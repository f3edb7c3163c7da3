"""Sizes that a model folder claims, held against its weights before anything is built by them.

A model is built by the numbers of its `config.json` before its weights are looked at: a folder
that claims a billion layers would keep the machine busy until its memory is used up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from flower_privsyn.errors import ModelError

_WIDTHS: Final = ("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")

#: With which widths a size makes a table or a matrix of the model's.
_PRODUCTS: Final = {
    "vocab_size": _WIDTHS,
    "intermediate_size": _WIDTHS,
    "n_inner": _WIDTHS,
    "d_ff": _WIDTHS,
    "n_positions": _WIDTHS,
    "num_attention_heads": (),
    "num_key_value_heads": (),
    "n_head": (),
    "head_dim": (),
    "num_experts": (),
    "num_local_experts": (),
    **dict.fromkeys(_WIDTHS, ()),
}

#: Two weights of four bits: no format that is read packs more into a byte.
_WEIGHTS_A_BYTE: Final = 2

#: A configuration is a page of text.
_LONGEST: Final = 16 * 2**20


def refuse_absurd_sizes(folder: Path) -> None:
    """Refuse a model folder whose weights cannot have the sizes of its `config.json`.

    Args:
        folder: of a model of Transformers.

    Raises:
        ModelError: `config.json` is no JSON object, or a size in it is not a number its weights
            can have.
    """
    file = folder / "config.json"
    try:
        if file.stat().st_size > _LONGEST:
            raise ModelError(f"{file} is longer than any configuration of a model")
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not JSON ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} must hold one JSON object")
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    most = _WEIGHTS_A_BYTE * sum(path.stat().st_size for path in weights)
    if not most:
        return  # whoever loads it says what is missing
    for part in _parts(content):
        for key, value in _sizes(part):
            # A layer has a hundred bytes at the least, if only by its name.
            limit = most // 100 if key in _LAYERS else most
            widths = [
                width
                for other, width in _sizes(part)
                if other in _PRODUCTS.get(key, ()) and width > 0
            ]
            if not 0 <= value * min(widths, default=1) <= limit:
                raise ModelError(
                    f"{file} says {key} = {value:,}, which weights of {most // 2:,} bytes cannot "
                    "have: the folder is broken, or made to do harm"
                )


def count_weights(folder: Path) -> int:
    """Numbers in all safetensors files of a folder, by their headers.

    Args:
        folder: of a model.

    Returns:
        Their sum; 0 of files that are not there or cannot be read, which whoever loads them says.
    """
    total = 0
    for file in folder.glob("*.safetensors"):
        try:
            with file.open("rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                if length > file.stat().st_size:
                    return 0
                header = json.loads(opened.read(length))
            shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
            total += sum(math.prod(shape) for shape in shapes)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return 0
    return total


def _sizes(part: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in part.items():
        known = key in _PRODUCTS or key in _LAYERS
        if known and isinstance(value, int) and not isinstance(value, bool):
            yield key, value


def _parts(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configuration, and those of models inside it."""
    yield content
    for value in content.values():
        if isinstance(value, dict):
            yield from _parts(value)
