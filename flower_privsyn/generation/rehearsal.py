"""Having a generator write once before anything depends on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation.backends import SamplingParameters, TextGenerator
from flower_privsyn.generation.by_messages import ByMessages
from flower_privsyn.generation.openai_backend import OpenAIGenerator

#: How often a generator is asked that writes nothing: one text may be empty by chance.
_TRIES: Final = 4


def rehearse(
    generator: TextGenerator,
    prompt: str,
    *,
    num_samples: int = 1,
    sampling: SamplingParameters,
    adapter: Path | None = None,
) -> None:
    """Ask a generator for what the run will ask it for, so that it fails before a release does.

    A server gets one request as the run will send them: its address, its key, the model's name and
    its limits on samples and tokens are tried. A model in this process writes a single token, and
    a whole text only where that says nothing, or it answers messages.

    Args:
        generator: what is to write.
        prompt: one of the run's prompts; public text.
        num_samples: continuations of a prompt, as in the run.
        sampling: how they are drawn, as in the run.
        adapter: a LoRA adapter to write with, where the run will use some.

    Raises:
        GenerationError: it does not answer, refuses, answers something else, or writes nothing
            however often it is asked.
        ModelError: the adapter cannot be loaded.
    """

    def write(attempt: int, *, tokens: int = sampling.max_new_tokens) -> list[str]:
        seed = (sampling.seed + attempt) % 2**64
        drawn = replace(sampling, seed=seed, max_new_tokens=tokens)
        written = generator.generate(
            [prompt], num_samples=num_samples, sampling=drawn, adapter=adapter
        )
        if [len(texts) for texts in written] != [num_samples]:
            raise GenerationError(
                f"the generator {generator.name} was asked for {num_samples} continuations of one "
                f"prompt and gave {[len(texts) for texts in written]}"
            )
        return written[0]

    model = generator.model if isinstance(generator, ByMessages) else generator
    if not isinstance(model, OpenAIGenerator):
        # Whether the new tokens leave room for a prompt is looked at without writing any.
        generator.generate([], sampling=sampling)
        num_samples = 1
        # The first token of an answer may be the beginning of thoughts that come to none.
        answers = isinstance(generator, ByMessages)
        if not answers and any(text.strip() for text in write(0, tokens=1)):
            return
    refuse_silence(write, name=generator.name)


def refuse_silence(write: Callable[[int], Iterable[str]], *, name: str) -> None:
    """Refuse a generator of whose texts none holds a letter, however often it is asked.

    Args:
        write: from the number of the attempt, from 0, to what was written.
        name: of the generator.

    Raises:
        GenerationError: it wrote nothing but white space.
    """
    for attempt in range(_TRIES):
        if any(text.strip() for text in write(attempt)):
            return
    raise GenerationError(
        f"the generator {name} was asked {_TRIES} times for a text and each time answered without "
        "one: the run would be paid for and have no text. A model that thinks before it answers "
        "needs more max-new-tokens, a chat model messages or a prompt that it goes on with; or "
        "name another generator"
    )
