"""Settings of every strategy that trains a generator on preferences among its own texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.api_key import API_KEY_VARIABLE, check_generator
from flower_privsyn.private_path.settings import (
    PrivateSumConfig,
    check_choice,
    check_integer,
    check_number,
)

if TYPE_CHECKING:
    from flower_privsyn.training import PreferencePair, PreferenceTraining, TrainingReport

#: What a run may be resumed with when its training did not fit into memory: the rounds so far are
#: paid for, and these change the memory alone.
MEMORY_SETTINGS = frozenset({"training-micro-batch-size", "gradient-checkpointing"})


#: How many texts to write at the end, and how a server lets one in.
FREE_SETTINGS = frozenset({"synthetic-samples", "generator-api-key-env"})

#: What writes the synthetic texts once no release is left to be made.
WRITING_SETTINGS = frozenset(
    {"generator", "training-model", "prompt", "temperature", "top-p", "max-new-tokens"}
)


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
class PreferenceConfig(PrivateSumConfig):
    """Settings of every strategy that trains a generator on preferences among its own texts.

    Attributes:
        max_samples: samples of one user that count, a random subset fixed per user and seed; 0 for
            all of them, as in the paper: the clip bounds a user whatever their number. The default
            bounds the time a user's answer takes, which nothing noises: 64 samples of 64 tokens are
            about 3,000 words, and the mean over so many has an eighth of one sample's spread.
        num_prompts: prompts per round (K), >= 1, each of three random public samples.
        responses_per_prompt: responses to each prompt (J), >= 2.
        rejected_rank: rank of the rejected response, 1-based, in [2, responses_per_prompt]; the
            chosen one has rank 1. A prompt with fewer usable responses rejects its last.
        loss: "dpo", "ipo", or "sft": cross-entropy on the chosen responses alone, the PE+SFT
            baseline of the paper.
        beta: DPO's beta or IPO's tau, > 0; 0.01 in the authors' code.
        lora_rank: rank of the adapter, >= 1; 4 printed, 16 in the authors' code.
        lora_alpha: its scale times its rank, >= 1; 8 printed, 16 in the authors' code.
        learning_rate: peak rate of AdamW, > 0. The default suits `privsyn-lm`; for LLaMA-3-8B the
            paper has 3e-7 to 8e-7.
        learning_rate_schedule: "cosine" to zero, or "constant".
        warmup_steps: steps of linear warm-up, >= 0.
        training_epochs: passes over a round's pairs, >= 1.
        training_batch_size: pairs per step, >= 1.
        training_micro_batch_size: at most this many pairs go through the model at a time, >= 1. It
            changes memory, not the result, so a resumed run may have another one.
        gradient_checkpointing: recompute activations in the backward pass, for large models; a
            resumed run may have it otherwise.
        reference: what the loss measures against: "base", the public model, or "previous", the
            adapter the round began with.
        temperature: sampling temperature, > 0; 1.0 was best in the paper's ablation.
        top_p: nucleus, in (0, 1].
        max_new_tokens: tokens of the generator per response, >= 1. Responses are cut to
            `max_tokens` tokens of the embedding model, the length of the users' own samples.
        prompt: the prompt, a bundled name or a JSON file.
        generator: causal language model that writes; a name, a path, or
            "http://host:port/v1#model" for an OpenAI-compatible server such as vLLM's.
        generator_api_key_env: the environment variable of the ServerApp that holds the server's
            key; the key itself is never a setting. No key is sent where the usual one is not set.
        training_model: the same model as a local folder or hub name, to train adapters on; "" for
            `generator` itself, unless that is a server.
        public_text: the samples in the prompts: "bundled", or a JSONL file with `text` and no
            person's data.
        synthetic_samples: texts to write at the end, >= 1.
        checkpoint: which round's adapter writes them: "last"; "sketch-mmd": the one whose
            responses have the smallest squared distance to a released kernel mean; "validation",
            for research only: to the private text in `validation_text`, outside the budget.
        research: allow what the ledger does not cover, and stamp the run with it. Needed for
            `checkpoint = "validation"` and for nothing else.
        validation_text: for "validation", a JSONL file with `text`.
        patience: end the rounds when the responses have not come nearer to that mean for so many
            of them, >= 1; 0 for never. Needs `checkpoint = "sketch-mmd"`.
        num_features: random features of the kernel mean (D), even, >= 2.
        bandwidth: of its Gaussian kernel, > 0; 0 for the median heuristic on public text.
        embedding_weight: share of the embedding itself in the features, in [0, 1].

    References:
        Hou et al. 2025 (POPri), section 4 and appendix; values above are from there unless said.
    """

    delta: float = 3e-6
    max_samples: int = 64
    num_prompts: int = 1800
    responses_per_prompt: int = 10
    rejected_rank: int = 5
    loss: Literal["dpo", "ipo", "sft"] = "dpo"
    beta: float = 0.1
    lora_rank: int = 4
    lora_alpha: int = 8
    learning_rate: float = 1e-3
    learning_rate_schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = 0
    training_epochs: int = 2
    training_batch_size: int = 24
    training_micro_batch_size: int = 8
    gradient_checkpointing: bool = False
    reference: Literal["base", "previous"] = "base"
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 85
    prompt: str = "pre-text"
    generator: str = "privsyn-lm"
    generator_api_key_env: str = API_KEY_VARIABLE
    training_model: str = ""
    public_text: str = "bundled"
    synthetic_samples: int = 2000
    checkpoint: Literal["last", "sketch-mmd", "validation"] = "last"
    research: bool = False
    validation_text: str = ""
    patience: int = 0
    num_features: int = 4096
    bandwidth: float = 0.0
    embedding_weight: float = 0.0

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        check_generator(self.generator, self.generator_api_key_env)
        for key, low in (
            ("num_prompts", 1),
            ("responses_per_prompt", 2),
            ("rejected_rank", 2),
            ("lora_rank", 1),
            ("lora_alpha", 1),
            ("warmup_steps", 0),
            ("training_epochs", 1),
            ("training_batch_size", 1),
            ("training_micro_batch_size", 1),
            ("max_new_tokens", 1),
            ("synthetic_samples", 1),
            ("patience", 0),
            ("num_features", 2),
        ):
            check_integer(key.replace("_", "-"), getattr(self, key), low=low)
        for key in ("beta", "learning_rate", "temperature"):
            check_number(key.replace("_", "-"), getattr(self, key), low=0, low_open=True)
        check_number("top-p", self.top_p, low=0, high=1, low_open=True)
        check_number("bandwidth", self.bandwidth, low=0)
        check_number("embedding-weight", self.embedding_weight, low=0, high=1)
        check_choice("loss", self.loss, ("dpo", "ipo", "sft"))
        check_choice("learning-rate-schedule", self.learning_rate_schedule, ("cosine", "constant"))
        check_choice("reference", self.reference, ("base", "previous"))
        check_choice("checkpoint", self.checkpoint, ("last", "sketch-mmd", "validation"))
        by_validation = self.checkpoint == "validation"
        if by_validation != self.research or by_validation != bool(self.validation_text):
            raise ConfigError(
                'checkpoint = "validation", research = true and validation-text go together: the '
                "choice uses private text outside the budget. Got checkpoint = "
                f'"{self.checkpoint}", research = {str(self.research).lower()} and '
                f'validation-text = "{self.validation_text}"'
            )
        if self.rejected_rank > self.responses_per_prompt:
            raise ConfigError(
                f"rejected-rank = {self.rejected_rank} must be at most responses-per-prompt = "
                f"{self.responses_per_prompt}"
            )
        if self.patience and self.checkpoint != "sketch-mmd":
            raise ConfigError(
                f'patience = {self.patience} needs checkpoint = "sketch-mmd", got checkpoint = '
                f'"{self.checkpoint}": nothing else that is released says how near a round came'
            )
        if self.num_features % 2:
            raise ConfigError(f"num-features must be even, got {self.num_features}")
        if self.needs_training and not self.model_to_train:
            raise ConfigError(
                f'generator = "{self.generator}" is a server: set training-model to the folder or '
                "hub name of the model it serves, on which the adapters are trained"
            )

    @property
    def needs_training(self) -> bool:
        """Whether a run with these settings trains adapters."""
        return True

    @property
    def model_to_train(self) -> str:
        """The model adapters are trained on; empty when only a server is named."""
        if self.training_model:
            return self.training_model
        if self.generator.startswith(("http://", "https://")):
            return ""
        return self.generator.removeprefix("vllm:")

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


#: Prompt and response of four samples of `max_tokens` = 64 stay below it with any tokenizer.
_MAX_TRAINING_TOKENS = 1024
