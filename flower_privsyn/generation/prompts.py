"""Prompts for a causal language model: data files that number text samples, and their parser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation.prompt_files import read_prompt_file

_FOLDER = Path(__file__).with_name("prompts")
_KEYS = ("name", "description", "reference", "heading", "marker", "num_samples", "instruction")

#: To a chat model, of a prompt that says nothing itself.
_INSTRUCTION = (
    "The user shows a list of texts that breaks off where the next one is to stand. You write that "
    "one text: of the kind of the others, and as different from each of them as they are from one "
    "another. You answer with the text alone: no heading, no number, no remark, no quotes."
)


@dataclass(frozen=True, kw_only=True)
class Prompt:
    r"""A heading, then samples each under a numbered marker line; the model writes the next one.

    With the bundled ``pre-text`` and examples ``a b c`` the rendered prompt is::

        Here are 6 diverse original text samples:
        Original Text Sample 1
        a
        Original Text Sample 2
        b
        Original Text Sample 3
        c
        Original Text Sample 4

    It ends with a newline, which byte-level tokenizers keep as a token of its own, so that the
    continuation is tokenized as it was in training. A sample ends only where a *whole line* is a
    marker: a text that holds the word "Original", or even the marker inside a line, is kept.

    Attributes:
        name: The short name of the prompt.
        heading: One line; ``{num_samples}`` is replaced by the number below.
        marker: One line that holds ``{number}`` once, and some other text.
        num_samples: How many samples the heading announces; more than are given as examples.
        instruction: What is said, as the system's message, to a chat model that gets the prompt as
            a message; not said to one that goes on with it.
        description: What the prompt is for.
        reference: Where the format comes from.

    Raises:
        ConfigError: A value is empty, spans lines, lacks its field or is out of range.

    References:
        Hou et al., "PrE-Text: Training Language Models on Private Federated Data in the Age of
        LLMs", ICML 2024, figure 3.
    """

    name: str
    heading: str
    marker: str
    num_samples: int
    instruction: str = _INSTRUCTION
    description: str = ""
    reference: str = ""
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for key in ("name", "heading", "marker"):
            value = getattr(self, key)
            if not isinstance(value, str) or not value.strip() or "\n" in value:
                raise ConfigError(
                    f"prompt setting {key} must be one non-empty line of text, got {value!r}"
                )
        check_whole("prompt setting num_samples", self.num_samples, ge=2)
        if not isinstance(self.instruction, str):
            raise ConfigError(
                f"prompt setting instruction must be a string, got {self.instruction!r}"
            )
        before, number, after = self.marker.partition("{number}")
        if not number or "{number}" in after or not (before + after).strip():
            raise ConfigError(
                "prompt setting marker must hold {number} exactly once beside other text, "
                f"got {self.marker!r}"
            )
        # Trailing blanks are forgiven: models often write them before the line break.
        pattern = rf"^{re.escape(before)}\d+{re.escape(after)}[ \t\r]*$"
        object.__setattr__(self, "_pattern", re.compile(pattern, re.MULTILINE))

    def render(self, examples: Sequence[str]) -> str:
        """Write the prompt that asks for the sample after ``examples``.

        Args:
            examples: The given samples, at least 1 and fewer than ``num_samples``; every run of
                white space, newlines included, becomes one blank.

        Returns:
            The prompt; it ends with the marker line of the next sample and a newline.

        Raises:
            GenerationError: There are too few or too many examples, or one is empty.
        """
        if not 1 <= len(examples) < self.num_samples:
            raise GenerationError(
                f"prompt {self.name!r} takes 1 to {self.num_samples - 1} examples, "
                f"got {len(examples)}"
            )
        return self._numbered(examples) + self._marker_line(len(examples) + 1)

    def render_document(self, samples: Sequence[str]) -> str:
        """Write all samples under their markers: what a model is trained on to learn the format.

        Args:
            samples: 1 to ``num_samples`` texts; newlines are flattened as in `render`.

        Returns:
            The text; for every split of ``samples`` it starts with ``render(samples[:k])``.

        Raises:
            GenerationError: There are too few or too many samples, or one is empty.
        """
        if not 1 <= len(samples) <= self.num_samples:
            raise GenerationError(
                f"prompt {self.name!r} holds 1 to {self.num_samples} samples, got {len(samples)}"
            )
        return self._numbered(samples)

    def parse(self, continuation: str) -> str:
        """Cut the generated sample out of a continuation.

        Args:
            continuation: What the model wrote after the prompt, without the prompt.

        Returns:
            The text before the next full marker line (all of it if there is none), stripped.
        """
        found = self._pattern.search(continuation)
        return (continuation if found is None else continuation[: found.start()]).strip()

    def is_complete(self, continuation: str) -> bool:
        """Tell whether the model ended the sample with a full marker line."""
        return self._pattern.search(continuation) is not None

    @property
    def stop(self) -> str:
        """The string at which generation may stop: a newline and the marker up to its number."""
        return "\n" + self.marker.partition("{number}")[0]

    def _marker_line(self, number: int) -> str:
        return self.marker.replace("{number}", str(number)) + "\n"

    def _numbered(self, samples: Sequence[str]) -> str:
        parts = [self.heading.replace("{num_samples}", str(self.num_samples)) + "\n"]
        for number, sample in enumerate(samples, start=1):
            flat = " ".join(sample.split())
            if not flat:
                raise GenerationError(f"example {number} of prompt {self.name!r} is empty")
            parts += [self._marker_line(number), flat, "\n"]
        return "".join(parts)


def load_prompt(name_or_path: str | Path) -> Prompt:
    """Read a prompt by its short name or from a JSON file.

    Args:
        name_or_path: A bundled name (``"pre-text"``) or the path of a ``.json`` file with the
            keys ``name``, ``heading``, ``marker``, ``num_samples`` and, if wanted,
            ``instruction``, ``description`` and ``reference``.

    Returns:
        The prompt.

    Raises:
        ConfigError: The file is missing, is not such a JSON object, or holds a wrong value.
    """
    path, content = read_prompt_file(
        name_or_path,
        folder=_FOLDER,
        keys=_KEYS,
        required=("name", "heading", "marker", "num_samples"),
    )
    try:
        return Prompt(**content)
    except ConfigError as error:
        raise ConfigError(f"prompt file {path}: {error}") from error
