"""What every text generator can do, and how a sample is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.checks import NonNegativeFloat, PositiveInt, Settings
from flower_privsyn.errors import ConfigError, GenerationError

ProgressCallback = Callable[[int], None]
"""Called with the number of texts finished since the last call."""


@dataclass(frozen=True, kw_only=True)
class SamplingParameters(Settings):
    """How a continuation is drawn.

    Raises:
        ConfigError: A value is out of range.

    References:
        The defaults are those of Hou et al., PrE-Text, ICML 2024 (temperature 1, top-p 1, 85 new
        tokens).
    """

    seed: Annotated[
        int,
        Ge(0),
        Lt(2**64),
        "Every sample has a random stream of its own, derived from this seed, the text of its "
        "prompt, how often that prompt came before in the same call, and the number of the sample; "
        "see `flower_privsyn.generation.streams`.",
    ]
    max_new_tokens: Annotated[PositiveInt, "At most this many tokens are written."] = 85
    temperature: Annotated[NonNegativeFloat, "0 always takes the most likely token."] = 1.0
    top_p: Annotated[
        float,
        Gt(0),
        Le(1),
        "Only the smallest set of tokens with this probability is drawn from.",
    ] = 1.0
    repetition_penalty: Annotated[
        float,
        Ge(1),
        Le(100),
        "Logits of tokens that the continuation already holds are divided by this, those below "
        "zero multiplied, before the temperature; the prompt's tokens are not held against it. "
        "Only models that run in this process through Transformers know other values than 1 "
        "(Keskar et al., CTRL, 2019).",
    ] = 1.0
    stop: Annotated[
        tuple[str, ...],
        "Strings that end a continuation; the continuation does not hold them.",
    ] = ()

    def _called(self, name: str) -> str:
        return f"generation setting {name}"


@runtime_checkable
class TextGenerator(Protocol):
    """A causal language model, wherever it runs.

    Attributes:
        name: What the model is called in logs and run directories.
    """

    name: str

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: SamplingParameters,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Continue every prompt.

        Args:
            prompts: The texts to continue.
            num_samples: Continuations per prompt, >= 1.
            sampling: How they are drawn.
            adapter: The folder of a LoRA adapter in PEFT's format; None for the model itself.
            progress: Called with the number of continuations just finished.

        Returns:
            One list of ``num_samples`` continuations per prompt, in the order of ``prompts``,
            without the prompt.

        Raises:
            GenerationError: The model or its server cannot do it.
        """
        ...


@runtime_checkable
class ChatGenerator(Protocol):
    """A language model that answers messages, besides what a `TextGenerator` does."""

    def answer(
        self,
        messages: Sequence[str],
        *,
        system: str = "",
        sampling: SamplingParameters,
        progress: ProgressCallback | None = None,
    ) -> list[str]:
        """Answer every message, each in a conversation of its own.

        Args:
            messages: What the user says.
            system: What stands before it as the system's message; "" for none.
            sampling: How answers are drawn.
            progress: Called with the number of answers just finished.

        Returns:
            One answer per message, in their order.

        Raises:
            GenerationError: The model or its server cannot do it.
        """
        ...


def refuse_penalty(sampling: SamplingParameters, name: str) -> None:
    """Refuse a repetition penalty where something else than this package draws the tokens.

    Raises:
        ConfigError: There is one: servers hold the prompt's tokens against a text as well.
    """
    if sampling.repetition_penalty != 1.0:
        raise ConfigError(
            f"generation setting repetition_penalty = {sampling.repetition_penalty:g} needs a "
            f"model that runs in this process through Transformers, which {name!r} does not"
        )


def check_texts(key: str, texts: Sequence[object]) -> None:
    """Refuse a sequence that is one string, or holds anything but strings.

    Raises:
        GenerationError: With a sentence that names the argument and the entry.
    """
    if isinstance(texts, str):
        raise GenerationError(f"{key} must be a sequence of strings, got one string")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise GenerationError(f"{key}[{index}] must be a string, got {type(text).__name__}")
