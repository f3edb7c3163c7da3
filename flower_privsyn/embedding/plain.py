"""Embedding models of BERT's form, read from their files without the library of the model.

Importing sentence-transformers takes three times as long as PyTorch and a fast tokenizer, and twice
the memory: it brings what training, evaluation and other kinds of models need. Every node of a
federation, every process of a simulation and the server import it, to multiply with matrices that
lie in one file. So a folder that holds nothing but such a model (all-MiniLM-L6-v2, and most of its
kind) is read here, and gives the same bits; anything else, in any of its files, is left to the
library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flower_privsyn.embedding.packed import Bert, PackedEncoder, aligned

# What each file may say. A key that is not here may mean something that is not done here.
_MODULE_KEYS: Final = {"idx", "name", "path", "type"}
_BODY: Final[dict[str, tuple[Any, ...]]] = {
    "do_lower_case": (False,),
    "transformer_task": ("feature-extraction",),
    "modality_config": (
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    "module_output_name": ("token_embeddings",),
}
_WHOLE: Final[dict[str, tuple[Any, ...]]] = {
    "default_prompt_name": (None,),
    "model_type": ("SentenceTransformer",),
}
_WHOLE_AS_IT_IS: Final = {"__version__", "prompts", "similarity_fn_name"}
_NORMALIZE: Final[dict[str, tuple[Any, ...]]] = {
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding", None),
}
_MODES: Final = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_OTHER_MODES: Final = {
    "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens",
    "pooling_mode_lasttoken",
}
_BERT: Final[dict[str, tuple[Any, ...]]] = {
    "model_type": ("bert",),
    "architectures": (["BertModel"],),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
_SIZES: Final = (
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
# Of a configuration: how the model is taken apart, split, or packed into fewer bits.
_NOT_PLAIN: Final = ("auto_map", "quantization_config", "pruned_heads")
# Weights beside the weights, or in several files.
_OTHER_FILES: Final = ("adapter_config.json", "model.safetensors.index.json")
# In the file, and no part of a token's vector.
_UNUSED: Final = {
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
}
_WEIGHTS: Final = "model.safetensors"


class _NotPlainError(Exception):
    """Something in the folder is left to the library."""


@dataclass(frozen=True)
class PlainModel:
    """A model that was read here.

    Attributes:
        encoder: Tokens to states.
        pooled: From one text's states, float32 (tokens, d), to its vector, (d,).
        tokenizer: The fast tokenizer.
        max_tokens: Longest text in tokens, special tokens included.
    """

    encoder: PackedEncoder
    pooled: Callable[[Any], Any]
    tokenizer: Any
    max_tokens: int


def read_plain(folder: Path, *, precision: str, device: str | None) -> PlainModel | None:
    """Read a model, or leave it to the library.

    Args:
        folder: A sentence-transformers model folder that names no code of its own.
        precision: Of weights and states: "float32" or "bfloat16".
        device: As the library takes it; None is the CPU where there is no accelerator.

    Returns:
        None if the model is of another kind, has to be computed elsewhere, or is not whole; the
        library then says what is missing.
    """
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError:
        return None
    if device != "cpu" and (device is not None or torch.accelerator.is_available()):
        return None
    try:
        body, pooled = _modules(folder)
        config = _bert(_read(body / "config.json"))
        tokenizer, limit = _tokenizer(body, config["max_position_embeddings"])
        weights = _weights(load_file(body / _WEIGHTS), config, getattr(torch, precision))
    except Exception:
        # Whatever it is, the library reads the folder next, and has the better sentence for it.
        return None
    bert = Bert(
        weights=weights,
        heads=config["num_attention_heads"],
        layers=config["num_hidden_layers"],
        epsilon=config["layer_norm_eps"],
        bend=torch.nn.functional.gelu,
    )
    if not aligned(bert):
        return None
    return PlainModel(PackedEncoder(bert), pooled, tokenizer, limit)


def _modules(folder: Path) -> tuple[Path, Callable[[Any], Any]]:
    """The folder of the transformer, and what comes behind it."""
    listed = _read(folder / "modules.json")
    if not isinstance(listed, list) or any(set(entry) - _MODULE_KEYS for entry in listed):
        raise _NotPlainError
    # The library's own classes: `refuse_code` has looked at where they come from.
    kinds = [entry["type"].rpartition(".")[2] for entry in listed]
    places = [folder / entry["path"] for entry in listed]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise _NotPlainError
    if any((places[0] / name).exists() for name in _OTHER_FILES):
        raise _NotPlainError
    whole = folder / "config_sentence_transformers.json"
    if whole.exists():
        _checked(_read(whole), _WHOLE, _WHOLE_AS_IT_IS)
    last = places[-1] / "config.json"
    if kinds[-1] == "Normalize" and last.exists():
        _checked(_read(last), _NORMALIZE, set())
    mode = _pooling(_read(places[1] / "config.json"))
    return places[0], _pooled(mode, normalized=kinds[-1] == "Normalize")


def _tokenizer(body: Path, places: int) -> tuple[Any, int]:
    """The fast tokenizer, and the longest text in tokens."""
    # Without it the library has the sentence that says what to install.
    from transformers import AutoTokenizer

    options = _checked(_read(body / "sentence_bert_config.json"), _BODY, {"max_seq_length"})
    most = options.get("max_seq_length")
    given = {} if most is None else {"model_max_length": _count(most)}
    tokenizer = AutoTokenizer.from_pretrained(
        str(body), local_files_only=True, trust_remote_code=False, **given
    )
    if most is None:
        tokenizer.model_max_length = min(int(tokenizer.model_max_length), places)
    return tokenizer, _count(tokenizer.model_max_length)


def _pooling(config: Any) -> str:
    """The one way of pooling: "cls" or "mean"."""
    sizes = {"word_embedding_dimension", "embedding_dimension"}
    _checked(
        config,
        {"include_prompt": (True,), **dict.fromkeys(_OTHER_MODES, (False,))},
        {"pooling_mode", *_MODES, *sizes},
    )
    modes = [mode for name, mode in _MODES.items() if config.get(name)]
    found = config.get("pooling_mode", modes[0] if len(modes) == 1 else None)
    if found not in _MODES.values():
        raise _NotPlainError
    return str(found)


def _pooled(mode: str, *, normalized: bool) -> Callable[[Any], Any]:
    """From a text's states to its vector, by the operations that the library takes."""
    import torch

    def vector(states: Any) -> Any:
        if mode == "cls":
            found = states[None][:, 0]
        else:
            found = states[None].sum(dim=1) / torch.tensor([[float(len(states))]])
        return (torch.nn.functional.normalize(found, p=2, dim=-1) if normalized else found)[0]

    return vector


def _bert(config: Any) -> dict[str, Any]:
    """The sizes of a plain BERT."""
    if not isinstance(config, dict) or any(config.get(name) for name in _NOT_PLAIN):
        raise _NotPlainError
    for name in ("model_type", "hidden_act"):
        if name not in config:
            raise _NotPlainError
    if any(name in config and config[name] not in allowed for name, allowed in _BERT.items()):
        raise _NotPlainError
    found: dict[str, Any] = {name: _count(config[name]) for name in _SIZES}
    if found["hidden_size"] % found["num_attention_heads"]:
        raise _NotPlainError
    return found | {"layer_norm_eps": float(config["layer_norm_eps"])}


def _weights(found: dict[str, Any], config: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """All weights that a plain BERT has, and no others, each in memory of its own."""
    shapes = _shapes(config)
    if set(found) - _UNUSED != set(shapes):
        raise _NotPlainError
    if any(tuple(found[name].shape) != shape for name, shape in shapes.items()):
        raise _NotPlainError
    if any(not found[name].is_floating_point() for name in shapes):
        raise _NotPlainError
    # Where a tensor lies in the file is no address that products should start from.
    return {name: found[name].to(dtype, copy=True) for name in shapes}


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    wide, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], wide),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], wide),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], wide),
    }
    norms = ["embeddings.LayerNorm"]
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        square = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
        for name in (*square, f"{layer}.attention.output.dense"):
            shapes |= {f"{name}.weight": (wide, wide), f"{name}.bias": (wide,)}
        name = f"{layer}.intermediate.dense"
        shapes |= {f"{name}.weight": (inner, wide), f"{name}.bias": (inner,)}
        name = f"{layer}.output.dense"
        shapes |= {f"{name}.weight": (wide, inner), f"{name}.bias": (wide,)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    return shapes | {f"{name}.{part}": (wide,) for name in norms for part in ("weight", "bias")}


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _checked(found: Any, known: Mapping[str, tuple[Any, ...]], free: set[str]) -> dict[str, Any]:
    """A file's content: every key is known, and all but the free ones say what is done here."""
    if not isinstance(found, dict) or set(found) - set(known) - free:
        raise _NotPlainError
    if any(found[name] not in known[name] for name in found if name in known):
        raise _NotPlainError
    return found


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise _NotPlainError
    return value
