"""How texts become a fine-tuned model: settings of `flower_privsyn.training.causal`, and presets.

Papers:
    Hou et al., "PrE-Text: Training Language Models on Private Federated Data in the Age of LLMs"
        (ICML 2024), and "Private Federated Learning using Preference-Optimized Synthetic Data"
        (POPri, ICML 2025): DistilGPT2 on synthetic text.
    Tan et al., "Synthesizing Privacy-Preserving Text Data via Finetuning without Finetuning
        Billion-Scale LLMs" (CTCL, 2025), and Xie et al. (Aug-PE, ICML 2024): BERT-mini and -small
        as causal models.
    Wang et al., "Can Public Large Language Models Help Private Cross-device Federated Learning?"
        (NAACL 2024): public training of on-device models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from flower_privsyn.checks import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
)


@dataclass(frozen=True, kw_only=True)
class CausalTraining(Settings):
    """How texts become a fine-tuned model.

    Raises:
        ConfigError: A value is out of range; the message names the key.
    """

    learning_rate: Annotated[PositiveFloat, "AdamW's."] = 5e-4
    batch_size: Annotated[PositiveInt, "rows per step."] = 32
    micro_batch_size: Annotated[
        NonNegativeInt,
        "rows in memory at a time, or 0 for all. It changes memory, not the result: a step's loss "
        "is the mean over all its tokens.",
    ] = 0
    epochs: Annotated[PositiveInt, "passes over the texts; not used with `max_steps`."] = 3
    max_steps: Annotated[
        NonNegativeInt,
        "steps in all, however many passes that takes, or 0 for as many as `epochs` says.",
    ] = 0
    max_tokens: Annotated[
        PositiveInt,
        "tokens of text in a row besides the beginning token; the end of a text counts. Bounded by "
        "the model's context.",
    ] = 64
    long_texts: Annotated[
        Literal["split", "cut"],
        '"split": a text of more than `max_tokens` becomes several rows; "cut": only its beginning '
        "is used.",
    ] = "split"
    learn_ends: Annotated[
        bool,
        "whether the end of a text is predicted as well. Text that a generator's limit cut off has "
        "none, and a model that learnt one there ends its own text anywhere.",
    ] = True
    schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        '"constant", or "linear" or "cosine" to zero, after the warm-up.',
    ] = "linear"
    warmup_steps: Annotated[NonNegativeInt, "steps of linear warm-up."] = 10
    weight_decay: Annotated[NonNegativeFloat, "AdamW's."] = 0.01
    max_gradient_norm: Annotated[
        NonNegativeFloat, "gradients longer than this are scaled to it; 0 for no bound."
    ] = 1.0
    device: Annotated[
        Literal["auto", "cpu", "cuda"], '"auto" takes a GPU if there is one; else "cpu" or "cuda".'
    ] = "auto"
    lora_rank: Annotated[
        NonNegativeInt,
        "rank of LoRA adapters on all linear layers but the output, which are trained alone and "
        "put into the weights at the end; 0 trains all weights.",
    ] = 0
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        'of the products; "auto" is bfloat16 on a GPU and float32 on a CPU. Weights and the '
        "optimiser are float32 always.",
    ] = "auto"

    def _called(self, name: str) -> str:
        return f"training setting {name}"

    @classmethod
    def distilgpt2(cls, **overrides: Any) -> Self:
        """PrE-Text's and POPri's downstream training of DistilGPT2.

        AdamW at 2e-4, texts cut to 64 tokens with the beginning and the end, 20 epochs of steps of
        256 rows accumulated 64 times, no schedule, no bound on gradients (the released code). With
        few texts such steps are whole epochs: give `batch_size` then. The papers start from a
        DistilGPT2 tuned on C4, keep the best epoch by private validation text, which is outside
        the budget, and tokenize every text twice; here the last epoch is kept.
        """
        preset: dict[str, Any] = {
            "learning_rate": 2e-4,
            "batch_size": 256 * 64,
            "micro_batch_size": 256,
            "epochs": 20,
            "max_tokens": 63,  # and the beginning: 64
            "long_texts": "cut",
            "schedule": "constant",
            "warmup_steps": 0,
            "max_gradient_norm": 0.0,
            **overrides,
        }
        return cls(**preset)

    @classmethod
    def bert(cls, **overrides: Any) -> Self:
        """CTCL's and Aug-PE's downstream training of BERT-mini and BERT-small as causal models.

        6,000 steps of 64 rows at 3e-4. The model folder's configuration must say
        `is_decoder = true`, or a token would see those after it; such a folder loads as causal.
        """
        preset: dict[str, Any] = {
            "learning_rate": 3e-4,
            "batch_size": 64,
            "max_steps": 6000,
            "schedule": "constant",
            "warmup_steps": 0,
            **overrides,
        }
        return cls(**preset)

    @classmethod
    def public_llm(cls, *, distilled: bool = False, **overrides: Any) -> Self:
        """The public training of on-device models of Wang et al. (NAACL 2024), appendix B.2, B.3.

        Adam at 1e-3 on rows of at most 20 tokens, 512 in a step, or 128 with a teacher. All of C4
        is 1,400,000 steps of 512; distillation takes 100,000 steps of 128 on 1 % of it and 8,000 on
        0.08 %. Gradients are clipped, to a norm that is not printed; a schedule and weight decay
        are not either: none here.

        Args:
            distilled: whether there is a teacher.
            overrides: further settings.
        """
        preset: dict[str, Any] = {
            "learning_rate": 1e-3,
            "batch_size": 128 if distilled else 512,
            "epochs": 1,
            "max_tokens": 20,
            "schedule": "constant",
            "warmup_steps": 0,
            "weight_decay": 0.0,
            **overrides,
        }
        return cls(**preset)
