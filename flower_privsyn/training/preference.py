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
import logging
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
from flower_privsyn.data.data_sets import quiet
from flower_privsyn.errors import ConfigError, ModelError, TrainingError
from flower_privsyn.files import user_path
from flower_privsyn.models.adapters import adapter_digest, with_adapters
from flower_privsyn.models.library import failures_as, import_extra, quiet_transformers
from flower_privsyn.models.pretrained import (
    choose_device,
    choose_dtype,
    context_of,
    load_pretrained,
)
from flower_privsyn.training import storage
from flower_privsyn.training.common import check_weights, disable_dropout, own_random_state
from flower_privsyn.training.preference_settings import (
    PreferencePair,
    PreferenceTraining,
    TrainingReport,
)

trl: Any = import_extra("trl", needed_by="preference training", extra="training")
transformers: Any = import_extra("transformers", needed_by="preference training", extra="training")

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
    progress: Callable[[int, int], None] | None = None,
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
        progress: Called after every step with the steps made and the steps there will be.

    Returns:
        What was done.

    Raises:
        ConfigError: A setting does not fit the pairs or the model, or several GPUs are visible.
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
        with _quiet(), own_random_state():
            training = _Training(model, adapter, settings, seed)
            steps = training.run(pairs, partial, checkpoint, progress)
            training.write(built)
        return built, asdict(_report(steps, settings))

    report = storage.once(output, depends, build, holds=storage.ADAPTER)
    return TrainingReport(**{**report, "losses": tuple(report["losses"])})


class _Training:
    """A model with the adapter that learns, and TRL's training of it.

    Args:
        model: as it is named.
        adapter: of the round before, or None.
        settings: how.
        seed: of new adapters, and of the order of the pairs.
    """

    def __init__(
        self, model: str | Path, adapter: Path | None, settings: PreferenceTraining, seed: int
    ) -> None:
        device = choose_device(None if settings.device == "auto" else settings.device)
        if device.type == "cuda" and torch.cuda.device_count() > 1:
            raise ConfigError(
                f"preference training takes one GPU and {torch.cuda.device_count()} are visible: "
                "name one with CUDA_VISIBLE_DEVICES before the command"
            )
        chosen = choose_dtype(settings.precision, device)
        precision = "bfloat16" if chosen is torch.bfloat16 else "float32"
        base, self._tokenizer = load_pretrained(
            model, kind="causal", dtype=precision, device=str(device)
        )
        disable_dropout(base)  # TRL leaves attention's
        self._settings, self._precision, self._device = settings, precision, device
        self._name, self._adapter = str(model), adapter
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
        self._policy = with_adapters(
            base,
            name=str(model),
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            seed=self._seed,
        )

    def run(
        self,
        pairs: Sequence[PreferencePair],
        partial: Path,
        checkpoint: Path | None,
        progress: Callable[[int, int], None] | None,
    ) -> list[dict[str, float]]:
        """Train on the pairs.

        Args:
            pairs: none leaves the adapter as it was.
            partial: the folder of checkpoints.
            checkpoint: that is gone on from; None for none.
            progress: as it is told.

        Returns:
            What TRL noted of every step, those before the checkpoint included.
        """
        settings = self._settings
        # TRL measures against a copy of the adapter that it is given: a new one has no effect yet.
        if settings.reference == "previous" or not pairs:
            self._begin()
        if not pairs:
            return []
        trainer = self._trainer(pairs, partial, _Watch(progress))
        if settings.reference == "base":
            self._begin()
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

    def _begin(self) -> None:
        """Take up the adapter of the round before."""
        if self._adapter is None:
            return
        with failures_as(ModelError, f"adapter {self._adapter} cannot be loaded onto the model"):
            self._policy.load_adapter(
                str(self._adapter), "default", is_trainable=True, torch_device="cpu"
            )

    def _trainer(self, pairs: Sequence[PreferencePair], partial: Path, watch: _Watch) -> Any:
        """TRL's trainer of the adapter."""
        settings, tokenizer = self._settings, self._tokenizer
        supervised = settings.loss == "sft"
        if supervised:
            rows = [{"prompt": pair.prompt, "completion": pair.chosen} for pair in pairs]
        else:
            rows = [asdict(pair) for pair in pairs]
        # Nothing is learnt of padding, but it is looked up: some are added without a row.
        known = len(self._policy.get_input_embeddings().weight)
        if tokenizer.pad_token is None or tokenizer.pad_token_id >= known:
            tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
        # TRL ends every response with it, also one that was cut short: the end is the caller's.
        tokenizer.eos_token = ""
        batch, most = settings.training_batch_size, settings.training_micro_batch_size
        micro = max(size for size in range(1, min(most, batch) + 1) if batch % size == 0)
        context = context_of(self._policy)
        config: dict[str, Any] = {
            "output_dir": str(partial),
            "max_length": min(settings.max_tokens, context or settings.max_tokens),
            "use_cpu": self._device.type == "cpu",
            "bf16": self._precision == "bfloat16",
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
            "seed": self._seed,
            "dataloader_pin_memory": self._device.type != "cpu",
            "report_to": "none",
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",  # by the clock instead
            "save_total_limit": 2,
        }
        if supervised:
            trainer_class, arguments = trl.SFTTrainer, trl.SFTConfig(**config)
        else:
            loss = "sigmoid" if settings.loss == "dpo" else "ipo"
            arguments = trl.DPOConfig(loss_type=[loss], beta=settings.beta, **config)
            trainer_class = trl.DPOTrainer
        trainer = trainer_class(
            model=self._policy,
            args=arguments,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        if not len(trainer.train_dataset):
            raise ConfigError(
                f"training setting max_tokens is {settings.max_tokens} and the model takes "
                f"{context}: the prompt of none of the {len(pairs)} preference pairs leaves room "
                "for a response"
            )
        trainer.remove_callback(transformers.PrinterCallback)  # it prints every step's figures
        return trainer

    def write(self, built: Path) -> None:
        """Write the adapter alone, with nothing of this machine in it."""
        path, config = user_path(self._name), self._policy.peft_config["default"]
        config.base_model_name_or_path = path.resolve().name if path.is_dir() else self._name
        # A set comes out in another order in every process; the same training gives the same file.
        config.target_modules = sorted(config.target_modules)
        self._policy.save_pretrained(
            built, selected_adapters=["default"], save_embedding_layers=False
        )
        (built / "README.md").unlink(missing_ok=True)


def _report(steps: Sequence[dict[str, float]], settings: PreferenceTraining) -> TrainingReport:
    last = steps[-(len(steps) // settings.training_epochs) :]

    def mean(key: str) -> float | None:
        return sum(step[key] for step in last) / len(last) if last and key in last[0] else None

    return TrainingReport(
        loss=mean("loss") or 0.0,
        margin=mean("rewards/margins"),
        accuracy=mean("rewards/accuracies"),
        losses=tuple(step["loss"] for step in steps),
    )


class _Watch(transformers.TrainerCallback):  # type: ignore[misc]
    """Moves the progress, asks for checkpoints by the clock, and marks finished ones."""

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self._progress = progress
        self._saved = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        storage.mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._saved = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # After the step's figures are in the state, and before its checkpoint.
        if self._progress is not None and "loss" in logs:
            self._progress(state.global_step, state.max_steps)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide bars, notices and warnings of the libraries, and keep TRL's word of its use here."""
    constants.HF_HUB_DISABLE_TELEMETRY = True
    for name in ("trl", "peft", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with quiet(datasets), quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
