"""Prompts as messages: what goes on with a text is a chat model, which answers instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation.backends import (
    ProgressCallback,
    SamplingParameters,
    TextGenerator,
    at_once,
)

#: A quotation mark that opens, and those that close it.
_QUOTES: Final = {
    '"': '"',
    "\u201c": "\u201d",
    "\u201e": "\u201c\u201d",
    "\u00ab": "\u00bb",
}

#: What models put before a heading that they repeat, and behind it.
_BEFORE: Final = r"[*_#>\s]*"
_BEHIND: Final = r"[*_:\s]*"


class ByMessages:
    """A chat model as a `TextGenerator`: every prompt is a message, and its answer what goes on.

    Models repeat the last line of a prompt or all of it before they go on with it, write the next
    heading and more, or put quotes around what they write: none of it is part of the continuation.
    What else they say is, as "Sure! Here is" a text: a prompt file's `instruction` is where one
    tells them not to. Stop strings are looked for in the continuation and not sent: they stand in
    thoughts, and before a heading that is repeated, as well.

    Attributes:
        name: The chat model's own.
        model: The chat model.
        at_once: The chat model's own.
    """

    def __init__(self, model: TextGenerator, *, instruction: str) -> None:
        """Choose how a model is asked.

        Args:
            model: What answers.
            instruction: The system's message, before every prompt; "" for none.
        """
        self.name = model.name
        self.model = model
        self.at_once = at_once(model)
        self._instruction = instruction

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
        """Have every prompt answered by what goes on with it; see `TextGenerator`.

        Args:
            prompts: The messages.
            num_samples: Answers per prompt, >= 1.
            sampling: How they are drawn.
            system: In place of the instruction; None for that.
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
        answers = self.model.generate(
            prompts,
            num_samples=num_samples,
            sampling=replace(sampling, stop=()),
            system=self._instruction if system is None else system,
            progress=progress,
        )
        return [
            [_after(prompt, text, stop=sampling.stop) for text in row]
            for prompt, row in zip(prompts, answers, strict=True)
        ]


def without_quotes(text: str) -> str:
    """A text without the one pair of quotes that stands around all of it."""
    if len(text) < 2:
        return text
    closing = _QUOTES.get(text[0], "")
    inside = text[1:-1]
    if text[-1] not in closing or any(mark in inside for mark in (text[0], *closing)):
        return text
    return inside.strip()


def _after(prompt: str, answer: str, *, stop: Sequence[str]) -> str:
    """The part of an answer that goes on with a prompt, as a continuation has it."""
    before, _, opening = prompt.rpartition("\n")
    text = _below(before.rpartition("\n")[2], answer.strip())
    for end in stop:
        text = text.partition(end)[0]
    text = without_quotes(text.strip())
    if opening and text.startswith(opening):
        return text.removeprefix(opening)
    return f" {text}" if opening and (text[:1].isalnum() or text[:1] in _QUOTES) else text


def _below(heading: str, text: str) -> str:
    """The part of an answer below a heading that it repeats, and above the next one.

    Args:
        heading: the last line of the prompt, "Sample 4"; "" for none.
        text: with that line, or others of another number, or none.
    """
    if not heading:
        return text
    own = re.escape(heading)
    other = re.sub(r"\d+", r"\\d+", own)
    line = r"(?im)^[*_#> \t]*{}[*_: \t\r]*$"
    beside = rf"(?i){_BEFORE}{own}(?![\w'\u2019]){_BEHIND}"
    if found := re.search(line.format(own), text) or re.match(beside, text):
        text = text[found.end() :]
    if following := re.search(line.format(other), text):
        text = text[: following.start()]
    return text
