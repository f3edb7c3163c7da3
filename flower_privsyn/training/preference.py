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

import hashlib
import importlib
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.checks import check_whole
from flower_privsyn.environment import library_versions
from flower_privsyn.errors import ConfigError, MissingExtraError, ModelError, TrainingError
from flower_privsyn.files import expanded
from flower_privsyn.models import BUNDLED_MODELS, resolve_model
from flower_privsyn.models.adapters import adapter_digest
from flower_privsyn.models.library import shorten
from flower_privsyn.training import storage
from flower_privsyn.training.fingerprint import weight_files
from flower_privsyn.training.preference_settings import PreferencePair, PreferenceTraining

logger = logging.getLogger(__name__)


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
    fingerprint = _fingerprint(resolve_model(model), pairs, adapter, settings, seed)
    storage.refuse_other(output, holds=storage.ADAPTER)
    partial = output.with_name(output.name + ".partial")
    known = storage.finished(output, fingerprint)
    if known is not None:
        storage.discard(partial)  # what a crash right after the end left
        if progress is not None and pairs:
            progress(settings.epochs * len(pairs))
        return TrainingReport(
            **{**known, "too_long": tuple(known["too_long"]), "losses": tuple(known["losses"])}
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = storage.last_checkpoint(partial, fingerprint)
    built = partial / "adapter"
    shutil.rmtree(built, ignore_errors=True)
    if not pairs and adapter is not None:
        _copy_adapter(adapter, built)
        report = training_report([], pairs=0, too_long=(), settings=settings)
    else:
        try:
            report = _trainers().train(
                model,
                pairs,
                adapter=adapter,
                built=built,
                name=_public_name(model),
                settings=settings,
                seed=seed,
                checkpoint=checkpoint,
                progress=progress or (lambda _: None),
            )
        except TrainingError:
            shutil.rmtree(partial)  # the same start would break down at the same place
            raise
    storage.install(built, output, fingerprint=fingerprint, report=asdict(report))
    shutil.rmtree(partial)
    return report


def training_report(
    steps: Sequence[dict[str, float]],
    *,
    pairs: int,
    too_long: tuple[int, ...],
    settings: PreferenceTraining,
) -> TrainingReport:
    """Sum up what TRL noted of every step.

    Args:
        steps: with `loss`, and but for supervised training `rewards/margins` and
            `rewards/accuracies`.
        pairs: pairs trained on.
        too_long: indices of the pairs left out.
        settings: how it was trained.
    """
    last = steps[-(len(steps) // settings.epochs) :]

    def mean(key: str) -> float | None:
        return sum(step[key] for step in last) / len(last) if last and key in last[0] else None

    return TrainingReport(
        steps=len(steps),
        loss=mean("loss") or 0.0,
        margin=mean("rewards/margins"),
        accuracy=mean("rewards/accuracies"),
        pairs=pairs,
        too_long=too_long,
        losses=tuple(step["loss"] for step in steps),
    )


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
    for name in (storage.ADAPTER, "adapter_model.safetensors"):
        if not (adapter / name).is_file():
            raise ModelError(f"adapter {adapter} holds no {name}")
        shutil.copyfile(adapter / name, built / name)
