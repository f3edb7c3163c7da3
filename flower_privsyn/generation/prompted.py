"""Texts of models that follow instructions: they write them, or write given ones anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from flower_privsyn.data.sentences import WORD, is_whole, whole_sentences
from flower_privsyn.generation import streams
from flower_privsyn.generation.backends import (
    ProgressCallback,
    SamplingParameters,
    TextGenerator,
    derive_seed,
    rehearse,
    text_seeds,
)
from flower_privsyn.generation.prompts import Instruction, flattened

#: {words} is never less: Aug-PE's.
LEAST_WORDS: Final = 25

#: What models say of the length of their answer.
_COUNT: Final = re.compile(r"\(\s*\d+\s+words?\s*\)")

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


class ByInstruction:
    """A language model that is asked by an instruction: as a chat, or to go on with a beginning.

    Args:
        generator: The language model.
        instruction: What it is asked.
        sampling: How answers are drawn; the seed is replaced, stop strings are joined.
        chat: Whether it is a chat model.
        domain: What the texts are, in public words: it stands for {domain}.
        blank_fraction: Share of the words that {blanked} has replaced by blanks, 0 to 1.
        word_spread: Standard deviation of {words} about the number of words the text has, >= 0.

    Raises:
        ConfigError: The instruction is not for such models.

    References:
        Xie et al. (Aug-PE), ICML 2024; the defaults are those of their code, where it counts words.
    """

    def __init__(
        self,
        generator: TextGenerator,
        instruction: Instruction,
        *,
        sampling: SamplingParameters,
        chat: bool,
        domain: str = "text",
        blank_fraction: float = 0.5,
        word_spread: float = 0.0,
    ) -> None:
        self._system = instruction.system.replace("{domain}", domain) if chat else None
        instruction.render(chat=chat)  # which refuses one that is not for such models
        self.name = f"{instruction.name} by {generator.name}"
        self._generator = generator
        self._instruction = instruction
        self._domain = domain
        self._blank_fraction = blank_fraction
        self._word_spread = word_spread
        stop = () if chat else instruction.stop
        self._sampling = replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *stop))))

    def vary(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        progress: ProgressCallback | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        """Have every text written anew; see `Variation`.

        Args:
            texts: The texts.
            seed: 0 <= seed < 2**64.
            progress: Called with the number of texts just finished.
            labels: The class of each text; None where there are none.

        Returns:
            As many texts, of whole sentences where the text is; one for which the model wrote
            nothing, or no whole sentence, comes back as it is.

        Raises:
            GenerationError: The model failed.
        """
        found = self._ask(texts, labels=labels, seed=seed, progress=progress)
        return [_like(old, new) or old for old, new in zip(texts, found, strict=True)]

    def write(
        self,
        number: int,
        *,
        words: int,
        seed: int,
        progress: ProgressCallback | None = None,
        labels: Sequence[str] | None = None,
    ) -> list[str]:
        """Have texts written where there were none.

        Args:
            number: How many, >= 0.
            words: About how many words each is to have.
            seed: 0 <= seed < 2**64.
            progress: Called with the number of texts just finished.
            labels: The class of each; None where there are none.

        Returns:
            As many texts, cut at the end of the last sentence of those that hold one, with ""
            where the model wrote nothing.
        """
        # As long as a text of so many words; what stands in it is in no prompt.
        found = self._ask(["_ " * words] * number, labels=labels, seed=seed, progress=progress)
        return [whole_sentences(text) or text for text in found]

    def rehearse(self, labels: Sequence[str] | None = None) -> None:
        """Have the model write once, before anything depends on it; nothing is kept.

        Args:
            labels: All classes; None where there are none.

        Raises:
            GenerationError: It does not answer, refuses, answers something else, or writes nothing
                however often it is asked.
        """
        prompt = self._prompt("A text.", labels[0] if labels else "", streams.stream(0))
        rehearse(self._generator, prompt, sampling=self._sampling, system=self._system)

    def _ask(
        self,
        texts: Sequence[str],
        *,
        labels: Sequence[str] | None,
        seed: int,
        progress: ProgressCallback | None,
    ) -> list[str]:
        own = text_seeds(derive_seed(seed, "instruction"), texts)
        prompts = [
            self._prompt(text, label, streams.stream(own_seed))
            for text, label, own_seed in zip(
                texts, labels if labels is not None else [""] * len(texts), own, strict=True
            )
        ]
        sampling = replace(self._sampling, seed=derive_seed(seed, "answer"))
        written = self._generator.generate(
            prompts, sampling=sampling, system=self._system, progress=progress
        )
        return [_plain(answer) for (answer,) in written]

    def _prompt(self, text: str, label: str, random: np.random.Generator) -> str:
        """The prompt for one text; every part that is drawn comes from its own stream."""
        words = WORD.findall(text)
        wanted = len(words) + round(float(random.normal(0.0, 1.0)) * self._word_spread)
        blanks = iter(random.random(len(words)) < self._blank_fraction)
        styles = self._instruction.styles
        style = styles[int(random.integers(len(styles)))] if styles else ""
        return self._instruction.render(
            chat=self._system is not None,
            label=label,
            text=flattened(text),
            blanked=WORD.sub(lambda word: "_" if next(blanks) else word[0], flattened(text)),
            words=str(max(LEAST_WORDS, wanted)),
            style=style,
            domain=self._domain,
        )


def _like(text: str, answer: str) -> str:
    """An answer, of a text of whole sentences those that it holds; "" where they are none."""
    if not is_whole(text):
        return answer
    cut = whole_sentences(answer)
    return cut if is_whole(cut) else ""


def _plain(answer: str) -> str:
    """An answer as a text: in one line, without the quotes around it and what it says of itself."""
    text = _without_quotes(" ".join(_COUNT.sub(" ", answer).split()))
    return "" if "\ufffd" in text else text


def _without_quotes(text: str) -> str:
    """A text without the one pair of quotes that stands around all of it."""
    if len(text) < 2:
        return text
    closing = _QUOTES.get(text[0], "")
    inside = text[1:-1]
    if text[-1] not in closing or any(mark in inside for mark in (text[0], *closing)):
        return text
    return inside.strip()


def below_heading(heading: str, answer: str) -> str:
    """The part of a chat model's answer that is the text below a heading.

    Models repeat the last line of a prompt or all of it before they go on with it, write the next
    heading and more, or put quotes around what they write: none of it is part of the text. What
    else they say is, as "Sure! Here is" a text: a prompt file's `instruction` is where one tells
    them not to.

    Args:
        heading: the last line of the prompt, "Sample 4".
        answer: with that line, or others of another number, or none.
    """
    text = answer.strip()
    own = re.escape(heading)
    other = re.sub(r"\d+", r"\\d+", own)
    line = r"(?im)^[*_#> \t]*{}[*_: \t\r]*$"
    beside = rf"(?i){_BEFORE}{own}(?![\w'\u2019]){_BEHIND}"
    if found := re.search(line.format(own), text) or re.match(beside, text):
        text = text[found.end() :]
    if following := re.search(line.format(other), text):
        text = text[: following.start()]
    return _without_quotes(text.strip())
