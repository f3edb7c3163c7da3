"""Embedding models of BERT's form, read from their files without the library of the model.

Importing sentence-transformers takes two to three times as long as PyTorch and a fast tokenizer,
and twice the memory: it brings what training, evaluation and other kinds of models need. Every node
of a federation, every process of a simulation and the server import it, to multiply with matrices
that lie in one file. So a folder that holds nothing but such a model (all-MiniLM-L6-v2, and most of
its kind) is read here, and gives the same bits. Whatever a file says that is not known to mean
nothing else leaves the folder to the library: both libraries look for more in it than a reader
would guess, other files of weights among it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flower_privsyn.embedding.packed import Bert, PackedEncoder, aligned, shapes

_log = logging.getLogger(__name__)

_TRANSFORMER: Final = (
    "sentence_transformers.models.Transformer",
    "sentence_transformers.base.modules.transformer.Transformer",
)
_POOLING: Final = (
    "sentence_transformers.models.Pooling",
    "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
)
_NORMALIZE: Final = (
    "sentence_transformers.models.Normalize",
    "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    "sentence_transformers.base.modules.normalize.Normalize",
)
# A folder of a module lies in that of the model.
_PLACE: Final = re.compile(r"\w*", re.ASCII)
# Files that say more of a model: adapters, weights in parts, what is no text.
_OTHER_FILES: Final = (
    "adapter_config.json",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
_WEIGHTS: Final = "model.safetensors"
_UNUSED: Final = {"embeddings.position_ids", "embeddings.token_type_ids"}
_FLOATS: Final = ("F64", "F32", "F16", "BF16")

_Rule = Callable[[Any], bool]


class _NotPlainError(Exception):
    """Something in the folder is left to the library."""


def _one_of(*allowed: Any) -> _Rule:
    return lambda value: any(type(value) is type(one) and value == one for one in allowed)


def _anything(value: Any) -> bool:
    del value
    return True


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _words(value: Any) -> bool:
    return isinstance(value, dict) and all(type(text) is str for text in value.values())


_MODULE: Final[dict[str, _Rule]] = {
    "idx": _anything,
    "name": _one_of("0", "1", "2"),
    "path": lambda value: type(value) is str and bool(_PLACE.fullmatch(value)),
    "type": _one_of(*_TRANSFORMER, *_POOLING, *_NORMALIZE),
}
_WHOLE: Final[dict[str, _Rule]] = {
    "__version__": _words,
    "default_prompt_name": _one_of(None),
    "model_type": _one_of("SentenceTransformer"),
    "prompts": _words,
    "similarity_fn_name": _one_of("cosine", "dot", "euclidean", "manhattan", None),
}
_BODY: Final[dict[str, _Rule]] = {
    "do_lower_case": _one_of(False),
    "max_seq_length": lambda value: value is None or _count(value),
    "modality_config": _one_of(
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    ),
    "module_output_name": _one_of("token_embeddings"),
    "transformer_task": _one_of("feature-extraction"),
}
_NORMALIZED: Final[dict[str, _Rule]] = {
    "module_input_name": _one_of("sentence_embedding"),
    "module_output_name": _one_of("sentence_embedding", None),
}
_MODES: Final = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
_POOLED: Final[dict[str, _Rule]] = {
    "embedding_dimension": _count,
    "include_prompt": _one_of(True),
    "pooling_mode": _one_of(*_MODES.values()),
    **dict.fromkeys(_MODES, _one_of(True, False)),
    "pooling_mode_lasttoken": _one_of(False),
    "pooling_mode_max_tokens": _one_of(False),
    "pooling_mode_mean_sqrt_len_tokens": _one_of(False),
    "pooling_mode_weightedmean_tokens": _one_of(False),
    "word_embedding_dimension": _count,
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
_BERT: Final[dict[str, _Rule]] = {
    "model_type": _one_of("bert"),
    "hidden_act": _one_of("gelu"),
    "layer_norm_eps": lambda value: type(value) is float and 0 < value < 1,
    **dict.fromkeys(_SIZES, _count),
    "add_cross_attention": _one_of(False),
    "architectures": _one_of(["BertModel"]),
    "is_decoder": _one_of(False),
    "position_embedding_type": _one_of("absolute"),
    "attention_probs_dropout_prob": _share,
    "hidden_dropout_prob": _share,
    # Of training, of other uses, of whoever wrote the file.
    "_name_or_path": _anything,
    "bos_token_id": _one_of(None),
    "classifier_dropout": lambda value: value is None or _share(value),
    "dtype": _one_of("float32", "float16", "bfloat16"),
    "eos_token_id": _one_of(None),
    "gradient_checkpointing": _one_of(False),
    "id2label": _words,
    "initializer_range": _share,
    "label2id": _anything,
    "pad_token_id": _one_of(0),
    "tie_word_embeddings": _one_of(True, False),
    "torch_dtype": _one_of("float32", "float16", "bfloat16"),
    "transformers_version": lambda value: type(value) is str,
    "use_cache": _one_of(True, False),
}
_NEEDED: Final = {"model_type", "hidden_act", "layer_norm_eps", *_SIZES}


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
        None if the model is of another kind, has to be computed elsewhere, or is not whole: the
        library reads the folder next, and has the better sentence for it.
    """
    try:
        import torch

        if device != "cpu" and (device is not None or torch.accelerator.is_available()):
            return None
        body, *behind = _modules(folder)
        config = _checked(_read(body / "config.json"), _BERT, needed=_NEEDED)
        pooled = _pooling(behind, config["hidden_size"])
        tokenizer, limit = _tokenizer(body, config["max_position_embeddings"])
        bert = Bert(
            weights=_weights(body / _WEIGHTS, config, getattr(torch, precision)),
            heads=config["num_attention_heads"],
            layers=config["num_hidden_layers"],
            epsilon=config["layer_norm_eps"],
            bend=torch.nn.functional.gelu,
        )
        if not aligned(bert):
            return None
        return PlainModel(PackedEncoder(bert), pooled, tokenizer, limit)
    except Exception:
        _log.debug("%s is left to sentence-transformers", folder, exc_info=True)
        return None


def _modules(folder: Path) -> list[Path]:
    """The folders of the transformer, of pooling and, where vectors are normalized, of that."""
    listed = _read(folder / "modules.json")
    _demand(isinstance(listed, list) and len(listed) in (2, 3))
    kinds = (_TRANSFORMER, _POOLING, _NORMALIZE)
    for number, (entry, known) in enumerate(zip(listed, kinds, strict=False)):
        _checked(entry, _MODULE, needed=set(_MODULE))
        _demand(entry["name"] == str(number) and entry["type"] in known)
    places = [folder / entry["path"] for entry in listed]
    _demand(len(set(places)) == len(places))
    _demand(not any((at / name).exists() for at in (folder, *places) for name in _OTHER_FILES))
    whole = folder / "config_sentence_transformers.json"
    if whole.exists():
        _checked(_read(whole), _WHOLE)
    return places


def _pooling(places: list[Path], wide: int) -> Callable[[Any], Any]:
    """What comes behind the transformer, by its files."""
    config = _checked(_read(places[0] / "config.json"), _POOLED)
    dimensions = [config[name] for name in config if name.endswith("dimension")]
    _demand(bool(dimensions) and all(found == wide for found in dimensions))
    modes = [mode for name, mode in _MODES.items() if config.get(name)]
    mode = config.get("pooling_mode", modes[0] if len(modes) == 1 else None)
    _demand(mode is not None)
    for place in places[1:]:
        if (place / "config.json").exists():
            _checked(_read(place / "config.json"), _NORMALIZED)
    return _pooled(str(mode), normalized=len(places) == 2)


def _pooled(mode: str, *, normalized: bool) -> Callable[[Any], Any]:
    """From a text's states to its vector, by the operations that the library takes."""
    import torch

    def vector(states: Any) -> Any:
        if mode == "cls":
            found = states[None][:, 0]
        else:
            found = states[None].sum(dim=1) / torch.tensor([[len(states)]], dtype=states.dtype)
        return (torch.nn.functional.normalize(found, p=2, dim=-1) if normalized else found)[0]

    return vector


def _tokenizer(body: Path, places: int) -> tuple[Any, int]:
    """The fast tokenizer, and the longest text in tokens."""
    from transformers import AutoTokenizer

    options = _checked(_read(body / "sentence_bert_config.json"), _BODY)
    # The library takes an empty file for none, and what other files of the kind say.
    _demand(bool(options))
    _demand(("modality_config" in options) == ("module_output_name" in options))
    settings = _read(body / "tokenizer_config.json")
    _demand(isinstance(settings, dict) and not {"auto_map", "processor_class"} & set(settings))
    most = options.get("max_seq_length")
    tokenizer = AutoTokenizer.from_pretrained(
        str(body),
        local_files_only=True,
        trust_remote_code=False,
        **({} if most is None else {"model_max_length": most}),
    )
    if most is None:
        tokenizer.model_max_length = min(int(tokenizer.model_max_length), places)
    limit = tokenizer.model_max_length
    _demand(_count(limit) and limit <= places)
    # The mean of no tokens is the library's to define.
    _demand(len(tokenizer("")["input_ids"]) > 0)
    return tokenizer, limit


def _weights(file: Path, config: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
    """All weights that a plain BERT has, and no others, each in memory of its own."""
    from safetensors import safe_open

    _demand(config["hidden_size"] % config["num_attention_heads"] == 0)
    wide = config["hidden_size"]
    known = shapes(config)
    pooler = {"pooler.dense.weight": (wide, wide), "pooler.dense.bias": (wide,)}
    with safe_open(file, framework="pt") as opened:
        names = set(opened.keys()) - _UNUSED
        _demand(names in (set(known), set(known) | set(pooler)))
        for name in names:
            part = opened.get_slice(name)
            _demand(tuple(part.get_shape()) == (known | pooler)[name])
            _demand(part.get_dtype() in _FLOATS)
        # Copied: where a tensor lies in the file is no address that products should start from.
        return {name: opened.get_tensor(name).to(dtype, copy=True) for name in known}


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _checked(
    found: Any, rules: Mapping[str, _Rule], *, needed: set[str] | frozenset[str] = frozenset()
) -> dict[str, Any]:
    """A file's content: all that has to be there, and nothing that is not known."""
    _demand(isinstance(found, dict) and needed <= set(found) <= set(rules))
    _demand(all(rules[name](value) for name, value in found.items()))
    content: dict[str, Any] = found
    return content


def _demand(holds: bool) -> None:
    if not holds:
        raise _NotPlainError
