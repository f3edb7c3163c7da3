"""Prompts as messages: what goes on with a text is a chat model, which answers instead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation.backends import (
    ChatGenerator,
    ProgressCallback,
    SamplingParameters,
    TextGenerator,
)

_QUOTES: Final = ('"', "\u201c", "\u201d")

#: What models put before a heading that they repeat, and behind it.
_BEFORE: Final = "*_#> \t\r\n"
_BEHIND: Final = "*_: \t\r\n"


class ByMessages:
    """A chat model as a `TextGenerator`: every prompt is a message, and its answer what goes on.

    Models repeat the last line of a prompt before they go on with it, or put quotes around what
    they write; neither is part of the continuation. What else they say is, as "Sure! Here is" a
    text: a prompt file's `instruction` is where one tells them not to.

    Attributes:
        name: The chat model's own.
        model: The chat model.
    """

    def __init__(self, model: TextGenerator, *, instruction: str) -> None:
        """Choose how a model is asked.

        Args:
            model: What answers; a `ChatGenerator` too.
            instruction: The system's message, before every prompt; "" for none.

        Raises:
            ConfigError: The model takes no messages.
        """
        self.name = model.name
        self.model = model
        self._chat = chat_of(model)
        self._instruction = instruction

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: SamplingParameters,
        adapter: Path | None = None,
        progress: ProgressCallback | None = None,
    ) -> list[list[str]]:
        """Have every prompt answered by what goes on with it; see `TextGenerator`.

        Args:
            prompts: The messages.
            num_samples: Answers per prompt, >= 1.
            sampling: How they are drawn.
            adapter: None: answers come from the model itself.
            progress: Called with the number of answers just finished.

        Raises:
            GenerationError: There is an adapter, or the model fails.
        """
        if adapter is not None:
            raise GenerationError(
                f"the generator {self.name} answers messages, which no adapter is trained for: "
                f"{adapter} cannot write"
            )
        messages = [prompt for prompt in prompts for _ in range(num_samples)]
        answers = self._chat.answer(
            messages, system=self._instruction, sampling=sampling, progress=progress
        )
        if len(answers) != len(messages):
            raise GenerationError(
                f"the generator {self.name} was sent {len(messages)} messages and answered "
                f"{len(answers)}"
            )
        going_on = [_after(*pair) for pair in zip(messages, answers, strict=True)]
        return [
            going_on[first : first + num_samples] for first in range(0, len(messages), num_samples)
        ]


def chat_of(model: TextGenerator) -> ChatGenerator:
    """The same model as one that answers messages.

    Raises:
        ConfigError: It takes none.
    """
    if not isinstance(model, ChatGenerator):
        raise ConfigError(
            f"the generator {model.name} takes no messages: name a server with /chat/completions, "
            'or have it go on with a beginning (generator-interface = "completions")'
        )
    return model


def without_quotes(text: str) -> str:
    """A text without the one pair of quotes that stands around all of it."""
    if len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
        return text[1:-1].strip()
    return text


def _after(prompt: str, answer: str) -> str:
    """The part of an answer that goes on with a prompt, as a continuation has it."""
    text = answer.strip()
    line = prompt.rstrip().rpartition("\n")[2]
    if prompt.endswith("\n"):
        # The line is a heading, of which there is nothing in the text below it.
        repeated = text.lstrip(_BEFORE)
        if line and repeated.startswith(line):
            text = repeated.removeprefix(line).lstrip(_BEHIND)
        return without_quotes(text)
    text = without_quotes(text)
    if line and text.startswith(line):
        return text.removeprefix(line)
    return f" {text}" if text and (text[0].isalnum() or text[0] in _QUOTES) else text
