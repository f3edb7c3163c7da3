"""Language models: loading one, or failing in one clear sentence, and reading rows by it."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from flower_privsyn.checks import check_choice
from flower_privsyn.errors import ModelError
from flower_privsyn.models.hub import download
from flower_privsyn.models.library import failures_as, import_extra, quiet_transformers, without_gc
from flower_privsyn.models.threads import computing

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16", "float16"]
Kind = Literal["causal", "masked", "causal or encoder-decoder"]

#: How causal architectures are called; a "WithLMHeadModel" of old is also filled as a masked one.
_CAUSAL = re.compile(r"(ForCausalLM|(?<!With)LMHeadModel)$")


def choose_device(device: str | None) -> torch.device:
    """Take the device asked for, or the first accelerator, or the CPU.

    Raises:
        ModelError: PyTorch does not know the device, or the machine does not have it.
    """
    import torch

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"device {device!r} is not available on this machine: give 'cpu' or a device that "
            "PyTorch finds here"
        ) from error
    return chosen


def choose_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Resolve ``"auto"``: bfloat16 where the hardware multiplies it natively, else float32.

    Raises:
        ConfigError: The name is none of the allowed ones.
    """
    import torch

    check_choice("generation setting dtype", dtype, get_args(Precision))
    chosen = torch.float32
    if dtype != "auto":
        chosen = getattr(torch, dtype)
    elif device.type == "cuda":
        chosen = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    elif device.type == "cpu":
        read: Any = getattr(torch.cpu, "get_capabilities", dict)  # of newer versions
        if any(read().get(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16")):
            chosen = torch.bfloat16
    return chosen


def load_pretrained(
    name: str | Path, *, kind: Kind, dtype: str, device: str | None
) -> tuple[Any, Any]:
    """Load a model in evaluation mode, and its tokenizer.

    Local folders and bundled models never touch the network; a hub name is looked up in the local
    cache first.

    Args:
        name: A bundled short name, a folder, or a name on the Hugging Face hub.
        kind: ``"causal"`` writes on from a prompt, ``"masked"`` fills gaps, ``"causal or
            encoder-decoder"`` also writes after a prompt that an encoder has read
            (`is_encoder_decoder` says which of the two was found).
        dtype: ``"auto"``, ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        device: As PyTorch names it; None chooses.

    Returns:
        The model and its fast tokenizer.

    Raises:
        ModelError: The model cannot be found, reached or used for this.
        MissingExtraError: PyTorch or Transformers is not installed.
    """
    called = "masked" if kind == "masked" else "causal"
    resolved, transformers = _folder_and_library(name)
    chosen_device = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen_device)
    unfit = f"model {str(name)!r} cannot be loaded as a {called} language model"
    with failures_as(ModelError, unfit), quiet_transformers(), without_gc():
        if (Path(resolved) / "adapter_config.json").exists():
            # Transformers 4 opens the folder that it names, wherever that is.
            raise ValueError("it holds an adapter, which names another model")
        config = transformers.AutoConfig.from_pretrained(
            resolved, local_files_only=True, trust_remote_code=False
        )
        # Weights and tables only, whoever made the folder: no code of its own, no pickled
        # objects.
        model, report = _class_for(kind, config, transformers).from_pretrained(
            resolved,
            torch_dtype=chosen_dtype,
            local_files_only=True,
            trust_remote_code=False,
            weights_only=True,
            output_loading_info=True,
        )
    missing = sorted(report["missing_keys"])
    if missing:
        # Transformers would fill them with random numbers and only warn.
        raise ModelError(
            f"model {str(name)!r} is no {called} language model: its file lacks {missing[0]} and "
            f"{len(missing) - 1} more weights"
        )
    model.eval().requires_grad_(False)
    return model.to(chosen_device), load_tokenizer(name)


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as one batch: the tokens, and 1 where there is one; both (rows, longest) integers.

    Padding follows a row, where no token of it looks.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    held = [torch.tensor(row, dtype=torch.long) for row in rows]
    seen = [torch.ones_like(row) for row in held]
    return pad_sequence(held, batch_first=True), pad_sequence(seen, batch_first=True)


def logits_at(model: Any, places: torch.Tensor, **inputs: Any) -> torch.Tensor:
    """The logits of some positions alone: for small models the output layer is half of the work.

    Args:
        model: a language model.
        places: (rows, length), true at these positions of what is decoded.
        **inputs: of its forward pass.

    Returns:
        (positions, vocabulary), one row of positions after the other.
    """
    if model.config.model_type == "privsyn-biased":  # what it adds depends on the place
        whole: torch.Tensor = model(**inputs).logits
        return whole[places]
    caller = threading.get_ident()  # other threads may be in the same model

    def select(_: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor] | None:
        return (given[0][places],) if threading.get_ident() == caller else None

    hook = model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        found: torch.Tensor = model(**inputs).logits
    finally:
        hook.remove()
    return found


def is_encoder_decoder(model: Any) -> bool:
    """Whether a model, or a configuration, is of an encoder and a decoder, such as BART or T5."""
    return bool(getattr(getattr(model, "config", model), "is_encoder_decoder", False))


def context_of(model: Any) -> int | None:
    """How many tokens a model reads at once, as its configuration says; None where it does not."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def special_tokens(tokenizer: Any) -> set[int]:
    """The numbers of a tokenizer's tokens that stand for no text."""
    added = tokenizer.added_tokens_decoder.items()
    return {*tokenizer.all_special_ids, *(number for number, token in added if token.special)}


def decoder_start_token(model: Any, tokenizer: Any) -> int:
    """The token that the decoder of an encoder-decoder begins every text with.

    The token that texts begin with, where the tokenizer has one, as the released code of CTCL has
    BART begin; else what the model names.

    Raises:
        ModelError: neither says.
    """
    named = [
        getattr(settings, "decoder_start_token_id", None)
        for settings in (model.config, model.generation_config)
    ]
    token = next((one for one in (tokenizer.bos_token_id, *named) if one is not None), None)
    if token is None:
        raise ModelError("the encoder-decoder names no token that its decoder begins with")
    return int(token)


def _class_for(kind: Kind, config: Any, transformers: Any) -> Any:
    """The class that a model is loaded as.

    Raises:
        ValueError: Its configuration says that it is for something else.
    """
    named = [str(one) for one in config.architectures or []]
    if kind == "masked":
        if any(map(_CAUSAL.search, named)):
            raise ValueError("it is a causal language model")
        return transformers.AutoModelForMaskedLM
    masked = any(one.endswith("ForMaskedLM") for one in named)
    if masked and not getattr(config, "is_decoder", False):
        # Transformers would run it, and let every token see the ones after it.
        raise ValueError("it is a masked language model")
    if not is_encoder_decoder(config):
        return transformers.AutoModelForCausalLM
    if kind == "causal":
        # Transformers would take the decoder of some of them, and leave the encoder out.
        raise ValueError("it is an encoder-decoder, which only CTCL trains and writes with")
    return transformers.AutoModelForSeq2SeqLM


def load_tokenizer(name: str | Path) -> Any:
    """Load the fast tokenizer of a model, and nothing else of it.

    Args:
        name: A bundled short name, a folder, or a name on the Hugging Face hub.

    Raises:
        ModelError: The model cannot be found or reached, or has no fast tokenizer.
        MissingExtraError: PyTorch or Transformers is not installed.
    """
    resolved, transformers = _folder_and_library(name)
    unfit = f"the tokenizer of model {str(name)!r} cannot be loaded"
    with failures_as(ModelError, unfit), quiet_transformers():
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            resolved, local_files_only=True, trust_remote_code=False
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"model {str(name)!r} has no fast tokenizer (tokenizer.json)")
    return tokenizer


def model_folder(name: str | Path) -> str:
    """The folder of a model, downloaded if it is on the hub and not in the local cache.

    Args:
        name: A bundled short name, a folder, or a name on the Hugging Face hub.

    Raises:
        ModelError: The model cannot be found or reached.
        MissingExtraError: What it needs is not installed.
    """
    from flower_privsyn.models import register_architecture, resolve_model

    resolved = resolve_model(name)
    if not Path(resolved).exists():
        resolved = download(resolved)
        register_architecture(Path(resolved))
    return resolved


def _folder_and_library(name: str | Path) -> tuple[str, Any]:
    """The folder of a model, downloaded if it is on the hub, and the module `transformers`."""
    # Names first: importing PyTorch takes seconds, and a wrong name needs none of it.
    resolved = model_folder(name)
    torch = import_extra("torch", needed_by="a language model", extra="server")
    # PyTorch would take all cores, whatever `PRIVSYN_THREADS` and the process's share of them say.
    torch.set_num_threads(computing())
    return resolved, import_extra("transformers", needed_by="a language model", extra="server")


def accepted_arguments(model: Any) -> frozenset[str]:
    """The arguments that a model's forward pass has a use for; with a bias, that of its inside."""
    inside = model.base if model.config.model_type == "privsyn-biased" else model
    return frozenset(inspect.signature(inside.forward).parameters)
