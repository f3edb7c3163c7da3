"""Settings of every strategy that trains a generator on preferences among its own texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from annotated_types import Ge, Gt, Le

from flower_privsyn.checks import IN_PYTHON, NonNegativeInt, PositiveFloat, PositiveInt
from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.api_key import is_address
from flower_privsyn.generation.generator_settings import GeneratorSettings
from flower_privsyn.private_path.settings import PrivateSumConfig

if TYPE_CHECKING:
    from flower_privsyn.training import PreferencePair, PreferenceTraining, TrainingReport

#: Prompt and response of four samples of `max_tokens` = 64 stay below it with any tokenizer.
_MAX_TRAINING_TOKENS = 1024


class PreferenceTrainer(Protocol):
    """What turns pairs into the next adapter: `flower_privsyn.training.train_preferences`."""

    def __call__(
        self,
        model: str | Path,
        pairs: Sequence[PreferencePair],
        *,
        adapter: Path | None,
        output: Path,
        settings: PreferenceTraining,
        seed: int,
        progress: Callable[[int], None] | None = None,
    ) -> TrainingReport:
        """Write the adapter `output` and say what was done."""
        ...


@dataclass(frozen=True, kw_only=True)
class PreferenceConfig(GeneratorSettings, PrivateSumConfig):
    """Settings of every strategy that trains a generator on preferences among its own texts.

    References:
        Hou et al. 2025 (POPri), section 4 and appendix; the defaults are from
            there unless said.
    """

    afterwards = frozenset(
        {
            "synthetic-samples",
            "generator",
            "generator-parameters",
            "training-model",
            "prompt",
            "temperature",
            "top-p",
            "max-new-tokens",
        }
    )

    delta: float = 3e-6
    max_samples: Annotated[
        int,
        "samples of one user that count, a random subset fixed per user and seed; 0 for all of "
        "them, as in the paper: the clip bounds a user whatever their number. The default bounds "
        "the time a user's answer takes, which nothing noises: 64 samples of 64 tokens are about "
        "3,000 words, and the mean over so many has an eighth of one sample's spread.",
    ] = 64
    num_prompts: Annotated[
        PositiveInt, "prompts per round (K), each of three random public samples."
    ] = 1800
    responses_per_prompt: Annotated[int, Ge(2), "responses to each prompt (J)."] = 10
    rejected_rank: Annotated[
        int,
        Ge(2),
        "rank of the rejected response, 1-based, at most `responses_per_prompt`; the chosen one "
        "has rank 1. A prompt with fewer usable responses rejects its last.",
    ] = 5
    loss: Annotated[
        Literal["dpo", "ipo", "sft"],
        '"sft" is cross-entropy on the chosen responses alone, the PE+SFT baseline of the paper.',
    ] = "dpo"
    beta: Annotated[
        PositiveFloat, "DPO's beta or IPO's tau; 0.01 in the authors' code.", IN_PYTHON
    ] = 0.1
    lora_rank: Annotated[
        PositiveInt, "rank of the adapter; 4 printed, 16 in the authors' code."
    ] = 4
    lora_alpha: Annotated[
        PositiveInt, "its scale times its rank; 8 printed, 16 in the authors' code.", IN_PYTHON
    ] = 8
    learning_rate: Annotated[
        PositiveFloat,
        "peak rate of AdamW. The default suits `privsyn-lm`; for LLaMA-3-8B the paper has 3e-7 to "
        "8e-7.",
    ] = 1e-3
    learning_rate_schedule: Annotated[
        Literal["cosine", "constant"], "of the learning rate; the cosine ends at zero.", IN_PYTHON
    ] = "cosine"
    warmup_steps: Annotated[
        NonNegativeInt,
        "steps of linear warm-up.",
        IN_PYTHON,
    ] = 0
    training_epochs: Annotated[PositiveInt, "passes over a round's pairs."] = 2
    training_batch_size: Annotated[PositiveInt, "pairs per step."] = 24
    training_micro_batch_size: Annotated[
        PositiveInt,
        "at most this many pairs go through the model at a time. It changes memory, and hardly the "
        "result, so a resumed run may have another one.",
    ] = 8
    gradient_checkpointing: Annotated[
        bool,
        "recompute activations in the backward pass, for large models; a resumed run may have it "
        "otherwise.",
        IN_PYTHON,
    ] = False
    reference: Annotated[
        Literal["base", "previous"],
        'what the loss measures against: "base", the public model, or "previous", the adapter the '
        "round began with.",
        IN_PYTHON,
    ] = "base"
    temperature: Annotated[
        PositiveFloat, "sampling temperature; 1.0 was best in the paper's ablation."
    ] = 1.0
    top_p: Annotated[float, Gt(0), Le(1), "nucleus."] = 1.0
    max_new_tokens: Annotated[
        PositiveInt,
        "tokens of the generator per response. Responses are cut to `max_tokens` tokens of the "
        "embedding model, the length of the users' own samples.",
    ] = 85
    prompt: Annotated[str, "the prompt, a bundled name or a JSON file."] = "pre-text"
    generator: Annotated[
        str,
        'causal language model that writes: a name, a folder, "gguf:FILE" for llama.cpp (where '
        'no adapters are trained), or "http://host:port/v1#model" for an OpenAI-compatible server '
        "like vLLM's.",
    ] = "privsyn-lm"
    training_model: Annotated[
        str,
        'the same model as a local folder or hub name, to train adapters on; "" for `generator` '
        "itself, unless that is a server.",
    ] = ""
    public_text: Annotated[
        str,
        'the samples in the prompts: "bundled", or a JSONL file with `text` and no person\'s data; '
        "also a folder or a data set by name (docs/own_data.md).",
    ] = "bundled"
    synthetic_samples: Annotated[PositiveInt, "texts to write at the end."] = 2000

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        if self.rejected_rank > self.responses_per_prompt:
            raise ConfigError(
                f"rejected-rank = {self.rejected_rank} must be at most responses-per-prompt = "
                f"{self.responses_per_prompt}"
            )
        if self.generator.startswith("gguf:"):
            raise ConfigError(
                f'generator = "{self.generator}" is run by llama.cpp, which loads no adapters: '
                'name the folder of the model itself, or "smollm2-135m"'
            )
        if not self.model_to_train:
            raise ConfigError(
                f'generator = "{self.generator}" is a server: set training-model to the folder or '
                "hub name of the model it serves, on which the adapters are trained"
            )

    @property
    def model_to_train(self) -> str:
        """The model adapters are trained on; empty when only a server is named."""
        if self.training_model:
            return self.training_model
        if is_address(self.generator):
            return ""
        return self.generator

    def training(self) -> PreferenceTraining:
        """The settings of one round's training."""
        from flower_privsyn.training import PreferenceTraining

        return PreferenceTraining(
            loss=self.loss,
            beta=self.beta,
            lora_rank=self.lora_rank,
            lora_alpha=self.lora_alpha,
            learning_rate=self.learning_rate,
            schedule=self.learning_rate_schedule,
            warmup_steps=self.warmup_steps,
            epochs=self.training_epochs,
            batch_size=self.training_batch_size,
            micro_batch_size=self.training_micro_batch_size,
            gradient_checkpointing=self.gradient_checkpointing,
            max_tokens=_MAX_TRAINING_TOKENS,
            max_new_tokens=self.max_new_tokens,
            reference=self.reference,
        )
