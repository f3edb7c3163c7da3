"""What every text generator can do, and how a sample is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from flower_privsyn.errors import GenerationError

ProgressCallback = Callable[[int], None]
"""Called with the number of texts finished since the last call."""


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """How a continuation is drawn.

    Attributes:
        seed: 0 <= seed < 2**64. Every sample has a random stream of its own, derived from this
            seed, the text of its prompt, how often that prompt came before in the same call, and
            the number of the sample; see :mod:`flower_privsyn.generation.streams`.
        max_new_tokens: At most this many tokens are written, >= 1.
        temperature: >= 0; 0 always takes the most likely token.
        top_p: In (0, 1]: only the smallest set of tokens with this probability is drawn from.
        stop: Strings that end a continuation; the continuation does not hold them.

    Raises:
        GenerationError: A value is out of range.

    References:
        The defaults are those of Hou et al., PrE-Text, ICML 2024 (temperature 1, top-p 1, 85 new
        tokens).
    """

    seed: int
    max_new_tokens: int = 85
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, minimum=0, maximum=2**64 - 1)
        check_integer("max_new_tokens", self.max_new_tokens, minimum=1)
        check_temperature_and_top_p(self.temperature, self.top_p)
        stop: object = self.stop
        if not isinstance(stop, tuple | list) or not all(
            isinstance(item, str) and item for item in stop
        ):
            raise GenerationError(
                f"generation setting stop must be a tuple of non-empty strings, got {stop!r}"
            )
        object.__setattr__(self, "stop", tuple(stop))


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


def check_integer(key: str, value: object, *, minimum: int, maximum: int | None = None) -> None:
    """Refuse anything but an integer in [minimum, maximum].

    Raises:
        GenerationError: With a sentence that names the key, the value and the range.
    """
    valid = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
    if valid and maximum is not None:
        valid = isinstance(value, int) and value <= maximum
    if not valid:
        span = f">= {minimum}" if maximum is None else f"in [{minimum}, {maximum}]"
        raise GenerationError(f"generation setting {key} must be an integer {span}, got {value!r}")


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


def check_temperature_and_top_p(temperature: object, top_p: object) -> None:
    """Refuse a temperature outside [0, inf) or a top-p outside (0, 1].

    Raises:
        GenerationError: With a sentence that names the key, the value and the range.
    """
    if not _is_number(temperature) or not 0 <= temperature < float("inf"):  # type: ignore[operator]
        raise GenerationError(
            f"generation setting temperature must be a number >= 0, got {temperature!r}"
        )
    if not _is_number(top_p) or not 0 < top_p <= 1:  # type: ignore[operator]
        raise GenerationError(f"generation setting top_p must be in (0, 1], got {top_p!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
