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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError

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
            Small models need far more: see the README of the POPri baseline.
        schedule: ``"cosine"`` to zero, or ``"constant"`` as in the authors' code.
        warmup_steps: Steps of linear warm-up, >= 0; 10 in the code.
        epochs: Passes over the pairs, >= 1; 1 in the code.
        batch_size: Pairs per step, >= 1.
        micro_batch_size: Pairs in memory at a time, a divisor of ``batch_size``; 0 for all. It
            changes memory, not the result, except that a last, smaller batch is averaged over
            its pieces.
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
    micro_batch_size: int = 0
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
            "device": ("auto", "cpu", "cuda"),
        }
        for key, allowed in choices.items():
            if getattr(self, key) not in allowed:
                raise ConfigError(
                    f"training setting {key} must be one of {', '.join(allowed)}, "
                    f"got {getattr(self, key)!r}"
                )
        least = {
            "lora_rank": 1,
            "lora_alpha": 1,
            "warmup_steps": 0,
            "epochs": 1,
            "batch_size": 1,
            "micro_batch_size": 0,
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
        if self.micro_batch_size and self.batch_size % self.micro_batch_size:
            raise ConfigError(
                f"training setting micro_batch_size must divide batch_size = {self.batch_size}, "
                f"got {self.micro_batch_size}"
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
        seconds: Wall time of this call.
    """

    steps: int
    loss: float
    margin: float | None
    accuracy: float | None
    pairs: int
    too_long: tuple[int, ...]
    losses: tuple[float, ...]
    seconds: float


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

    Args:
        model: A bundled short name, a folder, or a hub name of a causal language model.
        pairs: The preferences; none gives back the adapter unchanged.
        adapter: The adapter of the round before; None starts a new one.
        output: The folder to become the new adapter; it appears only when training is finished.
            An interrupted training goes on from its checkpoints beside it (``<output>.partial``).
        settings: How to train.
        seed: 0 <= seed < 2**64.
        progress: Called with the number of pairs just passed; ``epochs * len(pairs)`` in all.

    Returns:
        What was done.
    """
    raise NotImplementedError


def response_log_probabilities(
    model: str | Path,
    adapter: Path | None,
    prompts: Sequence[str],
    responses: Sequence[str],
    *,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "auto",
) -> npt.NDArray[np.float64]:
    """Log-probability of each response given its prompt: the sum over its tokens.

    Returns:
        (n,) float64, <= 0.
    """
    raise NotImplementedError


def _check_integer(key: str, value: Any, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"training setting {key} must be an integer >= {minimum}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
