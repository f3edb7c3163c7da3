"""What every text generator can do, how a sample is drawn, and what is asked of it first."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Final, Protocol, runtime_checkable

from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.checks import NonNegativeFloat, PositiveFloat, PositiveInt, Settings
from flower_privsyn.errors import GenerationError

USUAL: Final = 64
"""Samples to ask for at a time of a generator that says nothing else: little enough that an
interruption costs a minute, enough that a CPU is kept busy."""

#: How often a generator is asked that writes nothing: one text may be empty by chance.
_TRIES: Final = 4

#: Thoughts before an answer: all up to the mark that ends them, as a chat template may have begun
#: them; or to the end of what never came to an answer.
_THOUGHTS: Final = re.compile(
    r".*(?:</think(?:ing)?>|\[/THINK\])|\s*(?:<think(?:ing)?>|\[THINK\]).*",
    re.DOTALL | re.IGNORECASE,
)

ProgressCallback = Callable[[int], None]
"""Called with the number of texts finished since the last call."""


@dataclass(frozen=True, kw_only=True)
class WritingSettings(Settings):
    """How a generator writes.

    Raises:
        ConfigError: a value is out of range.
    """

    max_new_tokens: PositiveInt = 85
    """Tokens of the generator per text; 85 in PrE-Text."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature of what is written and filled in."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Nucleus of what is written and filled in."""

    def sampling_parameters(self, seed: int = 0, *stop: str) -> SamplingParameters:
        """How texts are drawn.

        Args:
            seed: of the draws, where what draws has none of its own.
            stop: strings that end a text.
        """
        how = {name: getattr(self, name) for name in WritingSettings.declared}
        return SamplingParameters(seed=seed, stop=stop, **how)


@dataclass(frozen=True, kw_only=True)
class SamplingParameters(WritingSettings):
    """How a continuation is drawn.

    Raises:
        ConfigError: A value is out of range.

    References:
        The defaults are those of Hou et al., PrE-Text, ICML 2024 (temperature 1, top-p 1, 85 new
        tokens).
    """

    seed: Annotated[int, Ge(0), Lt(2**64)]
    """Every sample has a random stream of its own, derived from this seed, the text of its prompt,
    how often that prompt came before in the same call, and the number of the sample; see
    `flower_privsyn.generation.streams`.
    """
    temperature: NonNegativeFloat = 1.0
    """0 always takes the most likely token."""
    stop: tuple[str, ...] = ()
    """Strings that end a continuation; the continuation does not hold them."""

    _noun: ClassVar = "generation setting"


def derive_seed(seed: int, *parts: str | int) -> int:
    """Hash a seed and what it is for into a new seed.

    Args:
        seed: 0 <= seed < 2**64.
        parts: What the new seed belongs to; every part counts with its type and length.

    Returns:
        An integer in [0, 2**63): servers read seeds as signed 64-bit numbers.
    """
    digest = hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "little"))
    for part in parts:
        coded = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else b"%d" % part
        digest.update(b"%s%d:" % (b"s" if isinstance(part, str) else b"i", len(coded)) + coded)
    return int.from_bytes(digest.digest(), "little") >> 1


def text_seeds(seed: int, texts: Sequence[str]) -> list[int]:
    """Derive one seed per text, whatever the order of the list.

    Args:
        seed: 0 <= seed < 2**64.
        texts: The texts; the k-th of equal ones gets another seed than the others.

    Returns:
        One integer in [0, 2**63) per text.
    """
    seen, seeds = Counter[str](), []
    for text in texts:
        seeds.append(derive_seed(seed, text, seen[text]))
        seen[text] += 1
    return seeds


@runtime_checkable
class TextGenerator(Protocol):
    """A language model, wherever it runs: it goes on with texts, or answers messages.

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
        system: str | None = None,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Continue every prompt, or answer it as a message.

        Args:
            prompts: The texts to continue; or messages, each in a conversation of its own.
            num_samples: Continuations per prompt, >= 1.
            sampling: How they are drawn.
            system: None to continue; else what stands before each message as the system's, "" for
                nothing.
            adapter: The folder of a LoRA adapter in PEFT's format; None for the model itself.
            progress: Called with the number of continuations just finished.

        Returns:
            One list of ``num_samples`` continuations per prompt, in the order of ``prompts``,
            without the prompt.

        Raises:
            GenerationError: The model or its server cannot do it.
        """
        ...


def at_once(generator: TextGenerator) -> int:
    """Samples to ask of a generator at a time: what its attribute `at_once` says, else `USUAL`."""
    return int(getattr(generator, "at_once", USUAL))


def mended(text: str) -> str:
    """A text without half characters: U+FFFD in place of each, and nothing where it ends in one.

    A server cuts a text at its limit of tokens, which may fall inside a character.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").rstrip("\ufffd")


def answered(text: str) -> str:
    """An answer without what a model has thought before it; "" where it came to no answer.

    Args:
        text: with thoughts between `<think>` and `</think>`, `<thinking>` or `[THINK]`, as servers
            give them that do not part them from the answer; or without any.
    """
    thoughts = _THOUGHTS.match(text)
    return text if thoughts is None else text[thoughts.end() :].strip()


def rehearse(
    generator: TextGenerator,
    prompt: str,
    *,
    num_samples: int = 1,
    sampling: SamplingParameters,
    system: str | None = None,
    adapter: Path | None = None,
) -> None:
    """Ask a generator for what the run will ask it for, so that it fails before a release does.

    Address, key, the model's name and its limits on samples and tokens are tried; nothing is kept.

    Args:
        generator: what is to write.
        prompt: one of the run's prompts; public text.
        num_samples: continuations of a prompt, as in the run.
        sampling: how they are drawn, as in the run.
        system: as in the run.
        adapter: a LoRA adapter to write with, where the run will use some.

    Raises:
        GenerationError: it does not answer, refuses, answers something else, or writes nothing
            however often it is asked.
        ModelError: the adapter cannot be loaded.
    """
    for attempt in range(_TRIES):
        written = generator.generate(
            [prompt],
            num_samples=num_samples,
            sampling=replace(sampling, seed=(sampling.seed + attempt) % 2**64),
            system=system,
            adapter=adapter,
        )
        if [len(texts) for texts in written] != [num_samples]:
            raise GenerationError(
                f"the generator {generator.name} was asked for {num_samples} continuations of one "
                f"prompt and gave {[len(texts) for texts in written]}"
            )
        if any(letter.isalnum() for text in written[0] for letter in text):
            return
    raise GenerationError(
        f"the generator {generator.name} was asked {_TRIES} times for a text and each time "
        "answered without one: the run would be paid for and have no text. A model that thinks "
        "before it answers needs more max-new-tokens, a chat model messages or a prompt that it "
        "goes on with; or name another generator"
    )
