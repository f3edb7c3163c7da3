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
import logging
import math
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.environment import library_versions
from flower_privsyn.errors import ConfigError, MissingExtraError, ModelError, TrainingError
from flower_privsyn.files import expanded
from flower_privsyn.models import BUNDLED_MODELS, resolve_model
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.models.library import quiet_transformers, shorten
from flower_privsyn.models.pretrained import (
    choose_device,
    choose_dtype,
    context_of,
    load_pretrained,
    model_folder,
)
from flower_privsyn.models.sizes import count_weights
from flower_privsyn.models.threads import SMALL
from flower_privsyn.training import storage
from flower_privsyn.training.encoding import encode_pairs
from flower_privsyn.training.fingerprint import weight_files
from flower_privsyn.training.preference_settings import PreferencePair, PreferenceTraining

logger = logging.getLogger(__name__)

#: The tokenizer of the last training, by the files of its model. A round trains for a few steps,
#: and reading 262,144 tokens takes longer than those do on a GPU.
_last_tokenizer: list[tuple[Any, Any]] = []


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
    adapter = None if adapter is None else Path(adapter)
    _check(pairs, adapter=adapter, output=output, settings=settings, seed=seed)
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
    task = _Task(
        model=model,
        pairs=pairs,
        adapter=adapter,
        settings=settings,
        seed=seed,
        progress=progress,
        partial=partial,
        checkpoint=checkpoint,
        built=built,
        files=fingerprint["model"],
    )
    report = _build(task)
    storage.install(built, output, fingerprint=fingerprint, report=asdict(report))
    shutil.rmtree(partial)
    return report


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A training that is to be done: what `train_preferences` was given, and its folders.

    Attributes:
        partial: of the checkpoints.
        checkpoint: to go on from; None for none.
        built: where the next adapter is written.
        files: of the model, with their digests.
    """

    model: str | Path
    pairs: Sequence[PreferencePair]
    adapter: Path | None
    settings: PreferenceTraining
    seed: int
    progress: Callable[[int], None] | None
    partial: Path
    checkpoint: Path | None
    built: Path
    files: Any


def _build(task: _Task) -> TrainingReport:
    """Write the next adapter: the one before where there is nothing to learn."""
    if task.built.exists():
        shutil.rmtree(task.built)
    if not task.pairs and task.adapter is not None:
        _copy_adapter(task.adapter, task.built)
        return _report([], 0, 0, (), task.settings)
    with _quiet(), _own_random_state():
        return _train(task)


def _train(task: _Task) -> TrainingReport:
    """Load, train from the checkpoint if there is one, and write the adapter."""
    model, settings = task.model, task.settings
    base, tokenizer, bfloat16 = _load(
        model, device=settings.device, precision=settings.precision, files=task.files
    )
    import torch

    trainers = _trainers()
    encoded = encode_pairs(
        tokenizer,
        task.pairs,
        max_new_tokens=settings.max_new_tokens,
        chosen_only=settings.loss == "sft",
    )
    limit = min(settings.max_tokens, context_of(base) or settings.max_tokens)
    kept = [pair for pair in encoded if pair.longest <= limit]
    too_long = tuple(pair.index for pair in encoded if pair.longest > limit)
    if too_long:
        if not kept:
            raise ConfigError(
                f"training setting max_tokens is {settings.max_tokens} and model {str(model)!r} "
                f"takes {context_of(base)}: none of the {len(encoded)} preference pairs fits, the "
                f"shortest has {min(pair.longest for pair in encoded)} tokens"
            )
        logger.warning(
            "%d of %d preference pairs are left out of training, being longer than %d tokens: %s",
            len(too_long),
            len(encoded),
            limit,
            ", ".join(map(str, too_long)),
        )
        if task.progress is not None:
            task.progress(settings.epochs * len(too_long))
    small_seed = _small_seed(task.seed)
    if task.adapter is None:
        policy = trainers.wrap(base, settings, seed=small_seed)
    else:
        policy = trainers.resume_adapter(base, task.adapter, settings)
    losses: list[dict[str, float]] = []
    padding = tokenizer.pad_token
    if kept:
        try:
            trainer = trainers.build_trainer(
                policy,
                tokenizer,
                kept,
                settings=settings,
                folder=task.partial,
                seed=small_seed,
                bfloat16=bfloat16,
                progress=task.progress,
            )
            start = None if task.checkpoint is None else str(task.checkpoint)
            trainer.train(resume_from_checkpoint=start)
            trainers.check_weights(policy)
        except TrainingError:
            # The same start would break down at the same place.
            shutil.rmtree(task.partial)
            raise
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"preference training needs more memory than {base.device} has: lower "
                f"micro_batch_size = {settings.micro_batch_size} or max_tokens = "
                f"{settings.max_tokens}, or set gradient_checkpointing"
            ) from error
        finally:
            # TRL gives one to a tokenizer that has none, and the next round's would be another one.
            tokenizer.pad_token = padding
        losses = [entry for entry in trainer.state.log_history if "privsyn/loss" in entry]
    storage.write_adapter(policy, task.built, base=_public_name(model))
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


def _check(
    pairs: Sequence[PreferencePair],
    *,
    adapter: Path | None,
    output: Path,
    settings: PreferenceTraining,
    seed: int,
) -> None:
    """Refuse what `train_preferences` cannot do."""
    for index, pair in enumerate(pairs):
        if not isinstance(pair, PreferencePair):
            raise ConfigError(f"pairs[{index}] must be a PreferencePair, got {pair!r}")
        if not pair.rejected and settings.loss != "sft":
            raise ConfigError(
                f"preference pair {index}: rejected may be empty only for loss = 'sft', "
                f"got loss = {settings.loss!r}"
            )
    check_whole("training setting seed", seed, ge=0, le=2**64 - 1)
    if adapter is not None and adapter.resolve() == output.resolve():
        raise ConfigError(f"output must be another folder than adapter, got {output} for both")


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
    return {
        "format": 1,
        "model": weight_files(resolved),
        "pairs": digest.hexdigest(),
        "adapter": None if adapter is None else adapter_digest(adapter),
        "settings": asdict(settings),
        "seed": seed,
        "versions": library_versions("torch", "transformers", "peft", "trl"),
    }


def _load(model: str | Path, *, device: str, precision: str, files: Any) -> tuple[Any, Any, bool]:
    """Load model and tokenizer; the third value tells whether bfloat16 was chosen."""
    _trainers()  # the clearer sentence when something is missing
    chosen = choose_device(None if device == "auto" else device)
    if precision == "auto":
        precision = "bfloat16" if chosen.type == "cuda" or _is_large(model) else "float32"
    # Where there is no folder, files are a mere name, which says nothing of what lies behind it.
    known = None
    if isinstance(files, list):
        known = next((kept for of, kept in _last_tokenizer if of == files), None)
    loaded, tokenizer = load_pretrained(
        model, kind="causal", dtype=precision, device=str(chosen), tokenizer=known
    )
    _last_tokenizer[:] = [(files, tokenizer)]
    return loaded, tokenizer, precision == "bfloat16"


def _is_large(model: str | Path) -> bool:
    """Whether a CPU here trains a model faster in bfloat16, and it is not too small to bear it."""
    import torch

    if count_weights(Path(model_folder(model))) < SMALL:
        return False
    return choose_dtype("auto", torch.device("cpu")) == torch.bfloat16


def _trainers() -> Any:
    try:
        return importlib.import_module("flower_privsyn.training.trainers")
    except ImportError as error:
        raise MissingExtraError(
            f"preference training needs PyTorch, Transformers, PEFT and TRL ({shorten(error)}): "
            "pip install 'flower-privsyn[training]'"
        ) from error


def _public_name(model: str | Path) -> str:
    """The base model's name without the folders of this machine."""
    path = expanded(str(model))
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
