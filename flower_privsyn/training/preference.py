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
import hashlib
import importlib
import importlib.metadata
import logging
import math
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flower_privsyn.errors import ConfigError, MissingExtraError, ModelError, TrainingError
from flower_privsyn.models import BUNDLED_MODELS, resolve_model
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.models.pretrained import (
    choose_device,
    load_pretrained,
    quiet_transformers,
    shorten,
)
from flower_privsyn.training import storage
from flower_privsyn.training.encoding import encode_pairs

logger = logging.getLogger(__name__)

DEVICES = ("auto", "cpu", "cuda")
LOSSES = ("dpo", "ipo", "sft")
SCHEDULES = ("cosine", "constant")
REFERENCES = ("base", "previous")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class PreferencePair:
    r"""Two responses to one prompt, the first preferred.

    Training reads ``prompt``, then ``chosen + chosen_end`` against ``rejected + rejected_end``.
    The ends are what the generator wrote to finish a text and the parser cut off, for a numbered
    prompt the line break and the next marker (``"\nOriginal Text Sample 5"``): without them a
    model forgets where to stop. Leave the end of a text empty when the text was cut short, or its
    middle is taught to be an end.

    Attributes:
        prompt: The text that was continued, exactly as the generator got it; not empty.
        chosen: The preferred response; not empty.
        rejected: The other response; empty only for ``loss="sft"``, which does not read it.
        chosen_end: What ended ``chosen``; empty for nothing.
        rejected_end: What ended ``rejected``; empty for nothing.

    Raises:
        ConfigError: A value is no text, the prompt or the chosen response is empty, or the two
            responses are the same.
    """

    prompt: str
    chosen: str
    rejected: str
    chosen_end: str = ""
    rejected_end: str = ""

    def __post_init__(self) -> None:
        for key in ("prompt", "chosen", "rejected", "chosen_end", "rejected_end"):
            value = getattr(self, key)
            if not isinstance(value, str):
                raise ConfigError(f"preference pair: {key} must be text, got {value!r}")
            if not value and key in ("prompt", "chosen"):
                raise ConfigError(f"preference pair: {key} must not be empty")
        if self.chosen == self.rejected:
            raise ConfigError("preference pair: chosen and rejected must differ")


@dataclass(frozen=True, kw_only=True)
class PreferenceTraining:
    """How preference pairs become a LoRA adapter; the defaults are the paper's unless said.

    Attributes:
        loss: ``"dpo"``; ``"ipo"`` (length-normalised, as its authors run it); ``"sft"``,
            cross-entropy on the chosen responses alone: the PE+SFT baseline.
        beta: DPO's beta and IPO's tau (the paper's tau), > 0; 0.01 in the authors' code.
        lora_rank: Rank of the adapter on all linear layers but the output, >= 1; 16 in the code.
        lora_alpha: The adapter's scale is ``lora_alpha / lora_rank``, >= 1; 16 in the code.
        lora_dropout: Share of the adapters' inputs zeroed in training, in [0, 1).
        learning_rate: AdamW's peak rate, > 0; the paper searches 3e-7 to 8e-7 for an 8 B model.
            Small models need far more: 12 steps move ``privsyn-lm`` well at 1e-3, and hardly at
            1e-4.
        schedule: ``"cosine"`` to zero, or ``"constant"`` as in the authors' code.
        warmup_steps: Steps of linear warm-up, >= 0; 10 in the code.
        epochs: Passes over the pairs, >= 1; 1 in the code.
        batch_size: Pairs per step, >= 1.
        micro_batch_size: At most this many pairs go through the model at a time, >= 1 (the
            largest divisor of ``batch_size`` up to it). It changes the memory, not the result.
        max_tokens: Longest prompt and response together, >= 2; the model's context bounds it as
            well. A longer pair is left out, and named in the report.
        max_new_tokens: The generator's limit, >= 1, or None if unknown: a response that does not
            fit into it together with its end was cut by it, so its end is not taught.
        reference: What DPO and IPO measure against: ``"base"``, the public model (ours, so that
            rounds do not drift), or ``"previous"``, the adapter the round began with.
        precompute_reference: Ask the reference once before the first epoch, not in every epoch.
            The same numbers; saves time from the second epoch on.
        gradient_checkpointing: Recompute activations in the backward pass: less memory, a third
            slower.
        device: ``"auto"`` takes a GPU if there is one; else ``"cpu"`` or ``"cuda"``.
        precision: ``"auto"`` is bfloat16 on a GPU and float32 on a CPU. The adapter itself is
            always float32.

    Raises:
        ConfigError: A value is out of range; the message names the key.

    References:
        Hou et al. 2025 (POPri), section 4 and appendix; "the code" is what its authors released.
    """

    loss: Literal["dpo", "ipo", "sft"] = "dpo"
    beta: float = 0.1
    lora_rank: int = 4
    lora_alpha: int = 8
    lora_dropout: float = 0.0
    learning_rate: float = 8e-7
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = 0
    epochs: int = 2
    batch_size: int = 24
    micro_batch_size: int = 8
    max_tokens: int = 512
    max_new_tokens: int | None = None
    reference: Literal["base", "previous"] = "base"
    precompute_reference: bool = False
    gradient_checkpointing: bool = False
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"

    def __post_init__(self) -> None:
        choices = {
            "loss": LOSSES,
            "schedule": SCHEDULES,
            "reference": REFERENCES,
            "precision": PRECISIONS,
            "device": DEVICES,
        }
        for key, allowed in choices.items():
            _check_choice(key, getattr(self, key), allowed)
        least = {
            "lora_rank": 1,
            "lora_alpha": 1,
            "warmup_steps": 0,
            "epochs": 1,
            "batch_size": 1,
            "micro_batch_size": 1,
            "max_tokens": 2,
        }
        for key, minimum in least.items():
            _check_integer(key, getattr(self, key), minimum)
        if self.max_new_tokens is not None:
            _check_integer("max_new_tokens", self.max_new_tokens, 1)
        for key in ("beta", "learning_rate"):
            if not _is_number(getattr(self, key)) or getattr(self, key) <= 0:
                raise ConfigError(
                    f"training setting {key} must be a number > 0, got {getattr(self, key)!r}"
                )
        if not _is_number(self.lora_dropout) or not 0 <= self.lora_dropout < 1:
            raise ConfigError(
                f"training setting lora_dropout must be in [0, 1), got {self.lora_dropout!r}"
            )
        for key in ("precompute_reference", "gradient_checkpointing"):
            if not isinstance(getattr(self, key), bool):
                raise ConfigError(
                    f"training setting {key} must be true or false, got {getattr(self, key)!r}"
                )


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """What a training did; computed from released scores and public text only.

    Attributes:
        steps: Optimiser steps in all, those before an interruption included.
        loss: Mean loss over the last epoch; 0 without steps.
        margin: Mean over the last epoch of beta times (log-probability ratio to the reference of
            chosen minus that of rejected), as met in training; None for ``loss="sft"``.
        accuracy: Share of pairs with a positive margin in the last epoch; None for ``"sft"``.
        pairs: Pairs trained on.
        too_long: Indices of the pairs left out because they exceed ``max_tokens``.
        losses: The loss of every step.
    """

    steps: int
    loss: float
    margin: float | None
    accuracy: float | None
    pairs: int
    too_long: tuple[int, ...]
    losses: tuple[float, ...]


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
        progress: Called with the number of pairs just passed; in all ``epochs * n``, those left
            out and those of an interrupted run included.

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
    pairs = tuple(pairs)
    _check_pairs(pairs, settings)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ConfigError(f"training setting seed must be an integer in [0, 2**64), got {seed!r}")
    if adapter is not None:
        adapter = Path(adapter)
        if adapter.resolve() == output.resolve():
            raise ConfigError(f"output must be another folder than adapter, got {output} for both")
    resolved = resolve_model(model)
    fingerprint = _fingerprint(resolved, pairs, adapter, settings, seed)
    total = settings.epochs * len(pairs)
    partial = output.with_name(output.name + ".partial")
    known = storage.finished_report(output, fingerprint)
    if known is not None:
        storage.discard(partial)  # what a crash right after the end left
        if progress is not None and total:
            progress(total)
        return _report_from(known)
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = storage.last_checkpoint(partial, fingerprint)
    built = partial / "adapter"
    if built.exists():
        shutil.rmtree(built)
    if not pairs and adapter is not None:
        _copy_adapter(adapter, built)
        report = _report([], 0, 0, (), settings)
    else:
        with _quiet(), _own_random_state():
            report = _train(
                model,
                pairs,
                adapter=adapter,
                settings=settings,
                seed=seed,
                progress=progress,
                partial=partial,
                checkpoint=checkpoint,
                built=built,
            )
    storage.install(built, output, fingerprint=fingerprint, report=asdict(report))
    shutil.rmtree(partial)
    return report


def _train(
    model: str | Path,
    pairs: Sequence[PreferencePair],
    *,
    adapter: Path | None,
    settings: PreferenceTraining,
    seed: int,
    progress: Callable[[int], None] | None,
    partial: Path,
    checkpoint: Path | None,
    built: Path,
) -> TrainingReport:
    """Load, train from the checkpoint if there is one, and write the adapter to ``built``."""
    base, tokenizer, bfloat16 = _load(model, device=settings.device, precision=settings.precision)
    import torch

    trainers = _trainers()
    encoded = encode_pairs(
        tokenizer,
        pairs,
        max_new_tokens=settings.max_new_tokens,
        chosen_only=settings.loss == "sft",
    )
    limit = min(settings.max_tokens, _positions(base) or settings.max_tokens)
    kept = [pair for pair in encoded if pair.longest <= limit]
    too_long = tuple(pair.index for pair in encoded if pair.longest > limit)
    if too_long:
        if not kept:
            raise ConfigError(
                f"training setting max_tokens is {settings.max_tokens} and model {str(model)!r} "
                f"takes {_positions(base)}: none of the {len(encoded)} preference pairs fits, the "
                f"shortest has {min(pair.longest for pair in encoded)} tokens"
            )
        logger.warning(
            "%d of %d preference pairs are left out of training, being longer than %d tokens: %s",
            len(too_long),
            len(encoded),
            limit,
            ", ".join(map(str, too_long)),
        )
        if progress is not None:
            progress(settings.epochs * len(too_long))
    small_seed = _small_seed(seed)
    if adapter is None:
        policy = trainers.wrap(base, settings, seed=small_seed)
    else:
        policy = trainers.resume_adapter(base, adapter, settings)
    losses: list[dict[str, float]] = []
    if kept:
        trainer = trainers.build_trainer(
            policy,
            tokenizer,
            kept,
            settings=settings,
            folder=partial,
            seed=small_seed,
            bfloat16=bfloat16,
            progress=progress,
        )
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            trainers.check_weights(policy)
        except TrainingError:
            # The same start would break down at the same place.
            shutil.rmtree(partial)
            raise
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"preference training needs more memory than {base.device} has: lower "
                f"micro_batch_size = {settings.micro_batch_size} or max_tokens = "
                f"{settings.max_tokens}, or set gradient_checkpointing"
            ) from error
        losses = [entry for entry in trainer.state.log_history if "privsyn/loss" in entry]
    storage.write_adapter(policy, built, base=_public_name(model))
    return _report(
        losses, len(kept), math.ceil(len(kept) / settings.batch_size), too_long, settings
    )


def _report(
    history: Sequence[dict[str, float]],
    num_pairs: int,
    steps_per_epoch: int,
    too_long: tuple[int, ...],
    settings: PreferenceTraining,
) -> TrainingReport:
    last = history[len(history) - steps_per_epoch :]

    def mean(key: str) -> float:
        return sum(entry[f"privsyn/{key}"] for entry in last) / len(last) if last else 0.0

    supervised = settings.loss == "sft"
    return TrainingReport(
        steps=len(history),
        loss=mean("loss"),
        margin=None if supervised or not last else mean("margin"),
        accuracy=None if supervised or not last else mean("accuracy"),
        pairs=num_pairs,
        too_long=too_long,
        losses=tuple(entry["privsyn/loss"] for entry in history),
    )


def _report_from(stored: dict[str, Any]) -> TrainingReport:
    values = {**stored, "too_long": tuple(stored["too_long"]), "losses": tuple(stored["losses"])}
    return TrainingReport(**values)


def _check_pairs(pairs: Sequence[PreferencePair], settings: PreferenceTraining) -> None:
    for index, pair in enumerate(pairs):
        if not isinstance(pair, PreferencePair):
            raise ConfigError(f"pairs[{index}] must be a PreferencePair, got {pair!r}")
        if not pair.rejected and settings.loss != "sft":
            raise ConfigError(
                f"preference pair {index}: rejected may be empty only for loss = 'sft', "
                f"got loss = {settings.loss!r}"
            )


def _fingerprint(
    resolved: str,
    pairs: Sequence[PreferencePair],
    adapter: Path | None,
    settings: PreferenceTraining,
    seed: int,
) -> dict[str, Any]:
    """Everything the trained weights depend on, short of the machine, as JSON can hold it."""
    digest = hashlib.blake2b(digest_size=16)
    for pair in pairs:
        for value in astuple(pair):
            digest.update(len(value.encode()).to_bytes(8, "big") + value.encode())
    # Hashing gigabytes of weights takes longer than a small training: sizes and times stand for
    # them, as in make.
    folder = Path(resolved)
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    model = [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for file in files
        if file.is_file()
    ]
    versions = {}
    for name in ("torch", "transformers", "peft", "trl"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return {
        "format": 1,
        "model": model or resolved,
        "pairs": digest.hexdigest(),
        "adapter": None if adapter is None else adapter_digest(adapter),
        "settings": asdict(settings),
        "seed": seed,
        "versions": versions,
    }


def _load(model: str | Path, *, device: str, precision: str) -> tuple[Any, Any, bool]:
    """Load model and tokenizer; the third value tells whether bfloat16 was chosen."""
    _trainers()  # the clearer sentence when something is missing
    chosen = choose_device(None if device == "auto" else device)
    if precision == "auto":
        precision = "bfloat16" if chosen.type == "cuda" else "float32"
    loaded, tokenizer = load_pretrained(model, kind="causal", dtype=precision, device=str(chosen))
    return loaded, tokenizer, precision == "bfloat16"


def _trainers() -> Any:
    try:
        return importlib.import_module("flower_privsyn.training.trainers")
    except ImportError as error:
        raise MissingExtraError(
            f"preference training needs PyTorch, Transformers, PEFT and TRL ({shorten(error)}): "
            "pip install 'flower-privsyn[training]'"
        ) from error


def _positions(model: Any) -> int | None:
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _public_name(model: str | Path) -> str:
    """The base model's name without the folders of this machine."""
    path = Path(str(model)).expanduser()
    return path.resolve().name if path.is_dir() and str(model) not in BUNDLED_MODELS else str(model)


def _copy_adapter(adapter: Path, built: Path) -> None:
    built.mkdir()
    for name in (storage.CONFIG, storage.WEIGHTS):
        if not (adapter / name).is_file():
            raise ModelError(f"adapter {adapter} holds no {name}")
        shutil.copyfile(adapter / name, built / name)


def _small_seed(seed: int) -> int:
    """32 bits of the seed, as the libraries' generators want; mixed, not cut."""
    return int.from_bytes(hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=4).digest(), "big")


@contextlib.contextmanager
def _own_random_state() -> Iterator[None]:
    """Put the libraries' global generators back: the trainer seeds all of them."""
    import torch

    python = random.getstate()
    arrays = np.random.get_state()  # noqa: NPY002  # it is the legacy state that is overwritten
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide bars, notices and warnings of the libraries: a run shows its own progress."""
    import datasets

    bars = datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    levels = {}
    for name in ("trl", "peft", "accelerate", "datasets"):
        named = logging.getLogger(name)
        levels[name] = named.level
        named.setLevel(logging.ERROR)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def _check_choice(key: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"training setting {key} must be one of {', '.join(allowed)}, got {value!r}"
        )


def _check_integer(key: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"training setting {key} must be an integer >= {minimum}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
