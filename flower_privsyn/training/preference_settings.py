"""What preference training is given, pairs of responses and how to learn from them, and says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveFloat, PositiveInt, Settings


@dataclass(frozen=True, kw_only=True)
class PreferencePair:
    r"""Two responses to one prompt, the first preferred.

    A response holds what the generator wrote to finish it and the parser cut off, for a numbered
    prompt the line break and the next marker (``"\nOriginal Text Sample 5"``): without it a model
    forgets where to stop. Nothing is added to one: give a text that was cut short without an end,
    or its middle is taught to be one.

    Attributes:
        prompt: The text that was continued, exactly as the generator got it; not empty.
        chosen: The preferred response; not empty.
        rejected: The other response; empty only for ``loss="sft"``, which does not read it.
    """

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True, kw_only=True)
class PreferenceSettings(Settings):
    """How a method that prefers some of its own texts learns from them; the paper's unless said.

    References:
        Hou et al. 2025 (POPri), section 4 and appendix; "the code" is what its authors released.
    """

    loss: Literal["dpo", "ipo", "sft"] = "dpo"
    """The loss: "ipo" is length-normalised, as its authors run it; "sft" is cross-entropy on the
    chosen responses alone: the PE+SFT baseline.
    """
    beta: Annotated[PositiveFloat, IN_PYTHON] = 0.1
    """DPO's beta and IPO's tau (the paper's tau); 0.01 in the code."""
    lora_rank: Annotated[PositiveInt, IN_PYTHON] = 4
    """Rank of the adapter on all linear layers but the output; 16 in the code."""
    lora_alpha: Annotated[PositiveInt, IN_PYTHON] = 8
    """The adapter's scale is `lora_alpha / lora_rank`; 16 in the code."""
    learning_rate: PositiveFloat = 8e-7
    """AdamW's peak rate; the paper searches 3e-7 to 8e-7 for an 8 B model. Small models need far
    more: 12 steps move `privsyn-lm` well at 1e-3, and hardly at 1e-4.
    """
    learning_rate_schedule: Annotated[Literal["cosine", "constant"], IN_PYTHON] = "cosine"
    """Either "cosine" to zero, or "constant" as in the code."""
    warmup_steps: Annotated[NonNegativeInt, IN_PYTHON] = 0
    """Steps of linear warm-up; 10 in the code."""
    training_epochs: PositiveInt = 2
    """Passes over the pairs; 1 in the code."""
    training_batch_size: PositiveInt = 24
    """Pairs per step."""
    training_micro_batch_size: Annotated[PositiveInt, IN_PYTHON] = 2
    """At most this many pairs go through the model at a time (the largest divisor of
    `training_batch_size` up to it). It changes the memory, and of the result only a pass's last
    step, where that has fewer pairs, so a resumed run may have another one.
    """
    reference: Annotated[Literal["base", "previous"], IN_PYTHON] = "base"
    """What DPO and IPO measure against: "base", the public model (ours, so that rounds do not
    drift), or "previous", the adapter the round began with.
    """
    gradient_checkpointing: Annotated[bool, IN_PYTHON] = False
    """Recompute activations in the backward pass: less memory, a third slower."""


@dataclass(frozen=True, kw_only=True)
class PreferenceTraining(PreferenceSettings):
    """How preference pairs become a LoRA adapter.

    Raises:
        ConfigError: A value is out of range; the message names the key.
    """

    max_tokens: Annotated[int, Ge(2)] = 512
    """Longest prompt and response together, of which the rest is not read; the model's context
    bounds it as well. A pair whose prompt alone is longer is left out.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs: "auto" takes a GPU if there is one; else "cpu" or "cuda"."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights: "auto" is bfloat16 where the hardware multiplies it natively, else float32.
    The adapter is float32.
    """

    _noun: ClassVar = "training setting"


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """What a training did; computed from released scores and public text only.

    Attributes:
        loss: Mean loss over the last epoch; 0 without steps.
        margin: Mean over the last epoch of beta times (log-probability ratio to the reference of
            chosen minus that of rejected), as met in training; None for ``loss="sft"``.
        accuracy: Share of pairs with a positive margin in the last epoch; None for ``"sft"``.
        losses: The loss of every optimiser step, those before an interruption included.
    """

    loss: float
    margin: float | None
    accuracy: float | None
    losses: tuple[float, ...]
