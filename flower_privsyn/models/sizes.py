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

#: How keys end whose number is one of layers: of the whole model, the encoder, the decoder.
_LAYERS: Final = ("layers", "_layer", "depth", "attention_types")

#: How keys end whose number, times a width, is a table's or a matrix's.
_TIMES_A_WIDTH: Final = (
    "vocab_size",
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "d_inner",
    "d_ff",
    "n_positions",
    "max_position_embeddings",
)

#: How keys end whose number is that of heads, experts, or a width itself.
_ALONE: Final = (
    "attention_heads",
    "key_value_heads",
    "n_head",
    "head_dim",
    "num_experts",
    "num_local_experts",
    *_WIDTHS,
)

#: Two weights of four bits: no format that is read packs more into a byte.
_WEIGHTS_A_BYTE: Final = 2

#: A configuration is a page of text.
_LONGEST: Final = 16 * 2**20


def refuse_absurd_sizes(folder: Path) -> None:
    """Refuse a model folder whose weights cannot have the sizes of its `config.json`.

    Sizes are known by the names that they have in most families, alone or in lists. One that a
    family has under a name of its own is not seen here.

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
    for key, value, part in _entries(content):
        if (limit := _limit(key, part, most)) is None or value is None:
            continue
        # A word names a kind of layer; a number in quotes has no honest reason.
        if isinstance(value, str):
            if _is_number(value):
                raise ModelError(f"{file} says {key} = {value[:80]!r}, which is no number")
            continue
        # A place among layers may be counted from the end, as in "vision_feature_layer": -2.
        least = -limit if key.endswith("_layer") and key != "n_layer" else 0
        if not least <= value <= limit:  # nor is NaN
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


def _limit(key: str, part: Mapping[str, Any], most: int) -> int | None:
    """The largest number that a key may have; None where the key is of no size.

    Args:
        key: of the configuration.
        part: the configuration that it stands in, with the widths of the same model.
        most: weights that the files can hold at the most.
    """
    if key.endswith(_LAYERS):
        # A layer has a hundred bytes at the least, if only by its name.
        return most // 100
    if key.endswith(_ALONE):
        return most
    if not key.endswith(_TIMES_A_WIDTH):
        return None
    if key == "max_position_embeddings" and any(other.startswith("rope") for other in part):
        return most  # positions by rotation have no table
    widths = [part[name] for name in _WIDTHS if isinstance(part.get(name), int)]
    return most // min((width for width in widths if width > 0), default=1)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Every value, with its key and the configuration that it stands in.

    Also those of models inside the configuration, and those in lists, which have the list's key.
    """
    waiting: list[tuple[str, Any, Mapping[str, Any]]] = [("", content, content)]
    while waiting:
        key, value, part = waiting.pop()
        if isinstance(value, dict):
            waiting += [(name, inner, value) for name, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(key, inner, part) for inner in value]
        else:
            yield key, value, part
