"""What preference training is given: pairs of responses, and how to learn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flower_privsyn.errors import ConfigError

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
