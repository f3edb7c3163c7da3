"""Having a generator write once before anything depends on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation.backends import SamplingParameters, TextGenerator
from flower_privsyn.generation.openai_backend import OpenAIGenerator


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
    its limits on samples and tokens are tried. A model in this process writes a single token.

    Args:
        generator: what is to write.
        prompt: one of the run's prompts; public text.
        num_samples: continuations of a prompt, as in the run.
        sampling: how they are drawn, as in the run.
        adapter: a LoRA adapter to write with, where the run will use some.

    Raises:
        GenerationError: it does not answer, refuses, or answers something else.
        ModelError: the adapter cannot be loaded.
    """
    if not isinstance(generator, OpenAIGenerator):
        # Whether the new tokens leave room for a prompt is looked at without writing any.
        generator.generate([], sampling=sampling)
        num_samples, sampling = 1, replace(sampling, max_new_tokens=1)
    written = generator.generate(
        [prompt], num_samples=num_samples, sampling=sampling, adapter=adapter
    )
    if [len(texts) for texts in written] != [num_samples]:
        raise GenerationError(
            f"the generator {generator.name} was asked for {num_samples} continuations of one "
            f"prompt and gave {[len(texts) for texts in written]}"
        )
