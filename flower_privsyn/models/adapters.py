"""LoRA adapters in PEFT's format: new ones, telling them apart, and putting one onto a model."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ModelError
from flower_privsyn.models.library import failures_as, import_extra, shorten
from flower_privsyn.models.pretrained import is_encoder_decoder


class AdapterSwitch:
    """Puts one LoRA adapter at a time onto a model, and takes it off again."""

    def __init__(self, model: Any, name: str) -> None:
        self._model = model
        self._name = name
        self._wrapped: Any = None
        self._active: str | None = None

    def activate(self, folder: Path | None) -> None:
        """Make the model behave as with the adapter in ``folder``, or as without any.

        Raises:
            ModelError: The folder holds no adapter for this model.
            MissingExtraError: PEFT is not installed.
        """
        digest = None if folder is None else adapter_digest(Path(folder))
        if digest == self._active:
            return
        if self._wrapped is not None:
            self._wrapped.unload()  # restores the model's own layers in place
        self._wrapped, self._active = None, None
        if hasattr(self._model, "peft_config"):
            del self._model.peft_config
        if folder is None:
            return
        peft = _peft()
        unfit = f"adapter {folder} cannot be loaded onto model {self._name!r}"
        with failures_as(ModelError, unfit), warnings.catch_warnings():
            # PEFT still calls what Transformers has renamed.
            warnings.simplefilter("ignore")
            # It would leave such weights at zero: the adapter would do nothing.
            warnings.filterwarnings("error", "Found missing adapter keys")
            self._wrapped = peft.PeftModel.from_pretrained(
                self._model, str(folder), autocast_adapter_dtype=False
            ).eval()
        self._active = digest


def with_adapters(model: Any, *, name: str, rank: int, alpha: int, seed: int) -> Any:
    """Put new adapters on all linear layers but the output; they alone are trained from then on.

    Args:
        model: a language model of Transformers.
        name: of it, for sentences.
        rank: of the adapters, >= 1.
        alpha: their scale times their rank, >= 1.
        seed: of their first weights, with which the model still is what it was.

    Raises:
        ModelError: the model takes none.
        MissingExtraError: PEFT is not installed.
    """
    import torch

    peft = _peft()
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="SEQ_2_SEQ_LM" if is_encoder_decoder(model) else "CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore")
        try:
            return peft.get_peft_model(model, settings)
        except ValueError as error:
            raise ModelError(f"model {name!r} takes no LoRA adapters: {shorten(error)}") from error


def _peft() -> Any:
    return import_extra("peft", needed_by="a LoRA adapter", extra="server")


def adapter_digest(folder: Path) -> str:
    """Hash the files of a LoRA adapter: the same path may hold another adapter next round.

    Raises:
        ModelError: The folder holds no adapter in PEFT's format.
    """
    config = folder / "adapter_config.json"
    if not config.is_file():
        raise ModelError(
            f"adapter {folder} is no folder with an adapter_config.json as PEFT writes it"
        )
    weights = next(folder.glob("adapter_model.safetensors"), folder / "adapter_model.bin")
    if not weights.is_file():
        raise ModelError(f"adapter {folder} holds no adapter_model.safetensors")
    digest = hashlib.blake2b(digest_size=16)
    for file in (config, weights):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "blake2b").digest())
    return digest.hexdigest()
