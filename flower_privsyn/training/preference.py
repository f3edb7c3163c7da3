"""Preference training of a causal language model: DPO, IPO and supervised fine-tuning with LoRA.

Papers:
    Hou et al., "Private Federated Learning using Preference-Optimized Synthetic Data" (POPri),
    ICML 2025, Algorithm 1: the step that turns a round's preference pairs into the next policy.
    Rafailov et al., "Direct Preference Optimization: Your Language Model is Secretly a Reward
    Model", NeurIPS 2023, equation 7 (`loss="dpo"`).
    Azar et al., "A General Theoretical Paradigm to Understand Learning from Human Preferences",
    AISTATS 2024, equation 17 (`loss="ipo"`).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from huggingface_hub import constants

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError, ModelError, TrainingError
from flower_privsyn.files import expanded
from flower_privsyn.models import BUNDLED_MODELS
from flower_privsyn.models.adapters import adapter_digest, with_adapters
from flower_privsyn.models.library import quiet_transformers, shorten
from flower_privsyn.models.pretrained import (
    choose_device,
    choose_dtype,
    context_of,
    count_weights,
    load_pretrained,
    model_folder,
)
from flower_privsyn.models.threads import SMALL
from flower_privsyn.training import storage
from flower_privsyn.training.common import check_weights, disable_dropout, own_random_state
from flower_privsyn.training.preference_settings import (
    PreferencePair,
    PreferenceTraining,
    TrainingReport,
)

peft: Any = importlib.import_module("peft")
transformers: Any = importlib.import_module("transformers")
trl: Any = importlib.import_module("trl")
preference_collator: Any = importlib.import_module(
    "trl.trainer.dpo_trainer"
).DataCollatorForPreference

#: Seconds between checkpoints. What is lost in a crash is at most this; writing one takes far less.
CHECKPOINT_SECONDS = 30.0


def train_preferences(
    model: str | Path,
    pairs: Sequence[PreferencePair],
    *,
    adapter: Path | None,
    output: Path,
    settings: PreferenceTraining,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> TrainingReport:
    """Train a LoRA adapter to prefer the chosen responses; the model's own weights never change.

    The adapter is in PEFT's format, which vLLM reads as well, and starts from ``adapter`` with a
    new optimiser. On a CPU with one thread the same arguments give the same weights, also after
    an interruption: checkpoints are kept in ``<output>.partial``, which is deleted at the end,
    and whose content is used only for the same model, pairs, settings, adapter, seed and library
    versions. A training that is already finished in ``output`` is not run again. Nothing is
    printed, sent, or written elsewhere.

    Formal guarantee:
        Post-processing: pairs come from public text, generated text and released scores, and the
        adapter and the report hold nothing else. Nothing is spent.

    Args:
        model: A bundled short name, a folder, or a hub name of a causal language model.
        pairs: (n,) preferences; none gives back the adapter unchanged, or one without effect.
        adapter: The adapter of the round before; None starts a new one.
        output: The folder to become the new adapter; it appears only when training is finished,
            and replaces an older adapter there. It may not be ``adapter`` itself.
        settings: How to train.
        seed: 0 <= seed < 2**64, for the new adapter, the order of the pairs and dropout.
        progress: Called with the number of pairs just passed, those of an interrupted run
            included; in all ``epochs`` times those that are not too long.

    Returns:
        What was done.

    Raises:
        ConfigError: A setting does not fit the pairs, the model or the adapter.
        ModelError: The model or the adapter cannot be loaded.
        TrainingError: The loss or the weights are no longer finite, or the memory of the GPU
            is used up; ``output`` is as it was.
        MissingExtraError: PyTorch, Transformers, PEFT or TRL is not installed.

    References:
        Hou et al. 2025 (POPri), Algorithm 1: the preference optimisation at the end of a round.
    """
    output = Path(output)
    check_whole("training setting seed", seed, ge=0, le=2**64 - 1)
    if adapter is not None and Path(adapter).resolve() == output.resolve():
        raise ConfigError(f"output must be another folder than adapter, got {output} for both")
    texts = (text for pair in pairs for text in astuple(pair))
    depends = storage.of_training(model, texts, settings, seed, "peft", "trl")
    depends["adapter"] = None if adapter is None else adapter_digest(Path(adapter))

    def build(partial: Path, checkpoint: Path | None) -> tuple[Path, dict[str, Any]]:
        built = partial / "adapter"
        shutil.rmtree(built, ignore_errors=True)
        steps: list[dict[str, float]] = []
        rows: list[dict[str, str]] = []
        too_long: tuple[int, ...] = ()
        if not pairs and adapter is not None:
            shutil.copytree(adapter, built)
        else:
            with _quiet(), own_random_state():
                policy, tokenizer, options = _load(model, adapter, settings, seed)
                rows, too_long = _rows(tokenizer, pairs, settings, context=context_of(policy))
                if rows:
                    watch = _Watch(len(rows), settings.training_batch_size, progress)
                    options["output_dir"] = str(partial)
                    trainer = _trainer(policy, tokenizer, rows, settings, options, watch)
                    steps = _run(trainer, settings, checkpoint)
                _write(policy, built, _public_name(model))
        return built, asdict(_report(steps, len(rows), too_long, settings))

    report = storage.once(output, depends, build, holds=storage.ADAPTER)
    lists = {"too_long": tuple(report["too_long"]), "losses": tuple(report["losses"])}
    return TrainingReport(**{**report, **lists})


def _load(
    model: str | Path, adapter: Path | None, settings: PreferenceTraining, seed: int
) -> tuple[Any, Any, dict[str, Any]]:
    """A model with the adapter that learns, its tokenizer, and what TRL is told."""
    device = choose_device(None if settings.device == "auto" else settings.device)
    precision = settings.precision
    if precision == "auto":
        large = device.type == "cuda" or count_weights(Path(model_folder(model))) >= SMALL
        fast = large and choose_dtype("auto", device) == torch.bfloat16
        precision = "bfloat16" if fast else "float32"
    base, tokenizer = load_pretrained(model, kind="causal", dtype=precision, device=str(device))
    if tokenizer.eos_token is None:
        raise ModelError(f"model {str(model)!r} has no token that ends a text: TRL needs one")
    disable_dropout(base)  # TRL leaves attention's
    small_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    options = _options(
        settings, seed=small_seed, bfloat16=precision == "bfloat16", on_cpu=device.type == "cpu"
    )
    if adapter is None:
        policy = with_adapters(
            base,
            name=str(model),
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            seed=small_seed,
        )
        return policy, tokenizer, options
    try:
        policy = peft.PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
    except Exception as error:
        raise ModelError(
            f"adapter {adapter} cannot be loaded onto the model: {shorten(error)}"
        ) from error
    return policy, tokenizer, options


def _rows(
    tokenizer: Any,
    pairs: Sequence[PreferencePair],
    settings: PreferenceTraining,
    *,
    context: int | None,
) -> tuple[list[dict[str, str]], tuple[int, ...]]:
    """What is trained on, each response with its end unless the generator had cut it.

    A response that stopped by itself fits into `max_new_tokens` together with its end, one that
    was cut fills it: so nothing needs to be remembered from generation.

    Returns:
        The pairs that are not too long, and the indices of those that are.

    Raises:
        ConfigError: All are.
    """

    def lengths(texts: list[str], **options: Any) -> list[int]:
        return [len(row) for row in tokenizer(texts, verbose=False, **options)["input_ids"]]

    names = ("chosen",) if settings.loss == "sft" else ("chosen", "rejected")
    rows = [{"prompt": pair.prompt} for pair in pairs]
    longest = [0] * len(pairs)
    for name in names if pairs else ():
        texts = [getattr(pair, name) + getattr(pair, f"{name}_end") for pair in pairs]
        if settings.max_new_tokens is not None:
            texts = [
                text if length <= settings.max_new_tokens else getattr(pair, name)
                for pair, text, length in zip(
                    pairs, texts, lengths(texts, add_special_tokens=False), strict=True
                )
            ]
        for row, text in zip(rows, texts, strict=True):
            row[name] = text
        whole = lengths([row["prompt"] + row[name] for row in rows])
        longest = list(map(max, longest, whole))
    limit = min(settings.max_tokens, context or settings.max_tokens)
    too_long = tuple(index for index, length in enumerate(longest) if length > limit)
    if rows and len(too_long) == len(rows):
        raise ConfigError(
            f"training setting max_tokens is {settings.max_tokens} and the model takes {context}: "
            f"none of the {len(rows)} preference pairs fits, the shortest has {min(longest)} tokens"
        )
    return [row for row, length in zip(rows, longest, strict=True) if length <= limit], too_long


def _options(
    settings: PreferenceTraining, *, seed: int, bfloat16: bool, on_cpu: bool
) -> dict[str, Any]:
    """What both trainers are told, in the words of `transformers.TrainingArguments`."""
    batch = settings.training_batch_size
    micro = next(
        size
        for size in range(min(settings.training_micro_batch_size, batch), 0, -1)
        if batch % size == 0
    )
    return {
        "max_length": None,  # too long pairs are left out by name, not cut
        "use_cpu": on_cpu,
        "bf16": bfloat16,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": batch // micro,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "num_train_epochs": settings.training_epochs,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": (
            "cosine" if settings.learning_rate_schedule == "cosine" else "constant_with_warmup"
        ),
        "warmup_steps": settings.warmup_steps,
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "seed": seed,
        "data_seed": seed,
        "dataloader_pin_memory": not on_cpu,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",  # by the clock instead
        "save_total_limit": 2,
    }


def _trainer(
    policy: Any,
    tokenizer: Any,
    rows: Sequence[dict[str, str]],
    settings: PreferenceTraining,
    options: dict[str, Any],
    watch: _Watch,
) -> Any:
    """TRL's trainer of the adapter `default` of a PEFT model."""
    supervised = settings.loss == "sft"
    arguments: dict[str, Any] = {
        "model": policy,
        "processing_class": tokenizer,
        "callbacks": [watch],
    }
    if supervised:
        config = trl.SFTConfig(completion_only_loss=True, **options)
        data: list[Any] = [_completion(tokenizer, **row) for row in rows]
    else:
        loss = "sigmoid" if settings.loss == "dpo" else "ipo"
        config = trl.DPOConfig(loss_type=[loss], beta=settings.beta, **options)
        data = list(rows)
        arguments["data_collator"] = _without_ends(tokenizer)
    config._n_gpu = min(config.n_gpu, 1)  # TRL refuses several in one process, and names this
    trainer = (trl.SFTTrainer if supervised else trl.DPOTrainer)(
        args=config, train_dataset=datasets.Dataset.from_list(data), **arguments
    )
    if settings.reference == "base" and not supervised:
        policy.delete_adapter("ref")  # TRL's copy of what the round began with
    trainer.remove_callback(transformers.PrinterCallback)  # it prints every step's figures
    return trainer


def _run(
    trainer: Any, settings: PreferenceTraining, checkpoint: Path | None
) -> list[dict[str, float]]:
    """What TRL noted of every step, those before the checkpoint included."""
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            "preference training needs more memory than the GPU has: lower "
            f"training_micro_batch_size = {settings.training_micro_batch_size} or "
            f"max_tokens = {settings.max_tokens}, or set gradient_checkpointing"
        ) from error
    check_weights(trainer.model)
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def _without_ends(tokenizer: Any) -> Callable[[Sequence[dict[str, Any]]], dict[str, Any]]:
    """TRL's collator, on responses less the token that TRL ends each with.

    Not all end there: one that was cut would teach its middle to be an end.
    """
    padding = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    collate = preference_collator(pad_token_id=padding)

    def collated(examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = ("chosen_ids", "rejected_ids")
        batch: dict[str, Any] = collate(
            [example | {name: example[name][:-1] for name in names} for example in examples]
        )
        return batch

    return collated


def _completion(tokenizer: Any, prompt: str, chosen: str) -> dict[str, list[int]]:
    """A response after its prompt as TRL takes tokens: without an end that it has not."""
    given = tokenizer(prompt, verbose=False)["input_ids"]
    tokens = tokenizer(prompt + chosen, verbose=False)["input_ids"]
    differing = (
        place for place, pair in enumerate(zip(given, tokens, strict=False)) if len({*pair}) > 1
    )
    shared = next(differing, min(len(given), len(tokens)))
    return {
        "input_ids": tokens,
        "completion_mask": [0] * shared + [1] * (len(tokens) - shared),
    }


def _write(policy: Any, built: Path, name: str) -> None:
    """Write the adapter alone, with nothing of this machine in it."""
    config = policy.peft_config["default"]
    config.base_model_name_or_path = name
    # A set comes out in another order in every process; the same training gives the same file.
    config.target_modules = sorted(config.target_modules)
    policy.save_pretrained(built, selected_adapters=["default"], save_embedding_layers=False)
    (built / "README.md").unlink(missing_ok=True)


def _public_name(model: str | Path) -> str:
    """The base model's name without the folders of this machine."""
    path = expanded(str(model))
    return path.resolve().name if path.is_dir() and str(model) not in BUNDLED_MODELS else str(model)


def _report(
    steps: Sequence[dict[str, float]],
    num_pairs: int,
    too_long: tuple[int, ...],
    settings: PreferenceTraining,
) -> TrainingReport:
    last = steps[-(len(steps) // settings.training_epochs) :]

    def mean(key: str) -> float | None:
        return sum(step[key] for step in last) / len(last) if last and key in last[0] else None

    return TrainingReport(
        steps=len(steps),
        loss=mean("loss") or 0.0,
        margin=mean("rewards/margins"),
        accuracy=mean("rewards/accuracies"),
        pairs=num_pairs,
        too_long=too_long,
        losses=tuple(step["loss"] for step in steps),
    )


class _Watch(transformers.TrainerCallback):  # type: ignore[misc]
    """Moves the progress, asks for checkpoints by the clock, and marks finished ones."""

    def __init__(
        self, num_pairs: int, batch_size: int, progress: Callable[[int], None] | None
    ) -> None:
        self._num_pairs = num_pairs
        self._batch_size = batch_size
        self._progress = progress
        self._done = 0
        self._saved = time.monotonic()

    def _advance(self, step: int) -> None:
        epoch, step = divmod(step, math.ceil(self._num_pairs / self._batch_size))
        done = epoch * self._num_pairs + min(step * self._batch_size, self._num_pairs)
        if self._progress is not None:
            self._progress(done - self._done)
        self._done = done

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            self._advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        storage.mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._saved = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # After the step's figures are in the state, and before its checkpoint.
        if "loss" in logs:
            self._advance(state.global_step)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide bars, notices and warnings of the libraries, and keep TRL's word of its use here."""
    bars = datasets.utils.are_progress_bars_disabled()
    telling = constants.HF_HUB_DISABLE_TELEMETRY
    named = [logging.getLogger(name) for name in ("trl", "peft", "accelerate", "datasets")]
    levels = [logger.level for logger in named]
    datasets.disable_progress_bars()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    for each in named:
        each.setLevel(logging.ERROR)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(named, levels, strict=True):
            each.setLevel(level)
        constants.HF_HUB_DISABLE_TELEMETRY = telling
        if not bars:
            datasets.enable_progress_bars()
