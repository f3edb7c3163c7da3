"""A small encoder, fine-tuned to classify texts: as the papers measure labelled synthetic text."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import PositiveFloat, PositiveInt, Settings
from flower_privsyn.errors import MissingExtraError, ModelError
from flower_privsyn.evaluation.classification import Classifier
from flower_privsyn.models.library import quiet_transformers, shorten
from flower_privsyn.models.pretrained import context_of, model_folder

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EncoderTraining(Settings):
    """How an encoder is fine-tuned.

    References:
        Xie et al. (Aug-PE), ICML 2024, authors' code: RoBERTa-base, 5 epochs of batches of 32 at
        3e-5.
    """

    epochs: Annotated[PositiveInt, "passes over the texts."] = 5
    learning_rate: Annotated[PositiveFloat, "of AdamW, after which it falls to 0."] = 3e-5
    batch_size: Annotated[PositiveInt, "texts of a step."] = 32
    max_tokens: Annotated[PositiveInt, "longest text, in the encoder's tokens."] = 512

    def _called(self, name: str) -> str:
        return f"setting {name} of the encoder"


def fine_tuned_encoder(
    model: str | Path,
    *,
    num_classes: int,
    training: EncoderTraining | None = None,
    seed: int = 0,
) -> Classifier:
    """A classifier that fine-tunes an encoder anew for whatever it is to learn from.

    Args:
        model: a bundled short name, a folder or a hub name of a model that Transformers can put a
            head of classes on.
        num_classes: how many.
        training: how.
        seed: of the head and the order of texts.

    Raises:
        ModelError: The model cannot be found, or no head of classes fits it.
        MissingExtraError: PyTorch or Transformers is not installed.
    """
    settings = training or EncoderTraining()
    try:
        folder = model_folder(model)
    except ImportError as error:
        raise _missing_extra() from error

    def learn(texts: Sequence[str], classes: IntArray, asked: Sequence[str]) -> IntArray:
        import torch

        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network, tokenizer = _load(model, folder, num_classes)
        optimizer = torch.optim.AdamW(network.parameters(), lr=settings.learning_rate)
        starts = range(0, len(texts), settings.batch_size)
        steps = settings.epochs * len(starts)
        schedule = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=0.0, total_iters=steps
        )
        longest = _longest(network, settings.max_tokens)
        targets = torch.from_numpy(np.asarray(classes, dtype=np.int64))
        network.train()
        for _ in range(settings.epochs):
            order = torch.randperm(len(texts), generator=generator).tolist()
            for start in starts:
                chosen = order[start : start + settings.batch_size]
                inputs = _inputs(tokenizer, [texts[place] for place in chosen], longest)
                loss = network(**inputs, labels=targets[chosen]).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        network.eval()
        found = []
        with torch.inference_mode():
            for start in range(0, len(asked), settings.batch_size):
                part = list(asked[start : start + settings.batch_size])
                logits = network(**_inputs(tokenizer, part, longest)).logits
                found.append(logits.argmax(dim=-1).numpy())
        return np.concatenate(found).astype(np.int64)

    return learn


def _missing_extra() -> MissingExtraError:
    return MissingExtraError(
        "fine-tuning an encoder needs Transformers: pip install 'flower-privsyn[evaluation]'"
    )


def _load(model: str | Path, folder: str | Path, num_classes: int) -> tuple[Any, Any]:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise _missing_extra() from error
    try:
        with quiet_transformers():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
            network = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder,
                num_labels=num_classes,
                local_files_only=True,
                trust_remote_code=False,
                weights_only=True,
            ).float()
    except Exception as error:
        raise ModelError(
            f"model {str(model)!r} cannot be loaded as a classifier of texts: {shorten(error)}"
        ) from error
    if network.config.pad_token_id is None:
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        network.config.pad_token_id = tokenizer.pad_token_id
    return network, tokenizer


def _longest(network: Any, wanted: int) -> int:
    """Tokens that a text may have; some models keep two positions for padding."""
    positions = context_of(network)
    return wanted if positions is None else max(4, min(wanted, positions - 2))


def _inputs(tokenizer: Any, texts: list[str], longest: int) -> Any:
    return tokenizer(
        texts, truncation=True, max_length=longest, padding=True, return_tensors="pt",
        return_token_type_ids=False,
    )  # fmt: skip
