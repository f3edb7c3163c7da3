"""Prompts: data files that number text samples, and instructions with placeholders."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flower_privsyn.checks import check_choice, check_whole
from flower_privsyn.errors import ConfigError, GenerationError

_FOLDER = Path(__file__).with_name("prompts")
_KEYS = ("name", "description", "reference", "heading", "marker", "num_samples", "instruction")

_INSTRUCTIONS = _FOLDER / "instructions"

#: What stands in braces in a prompt, and is replaced.
PLACEHOLDERS: Final = ("text", "blanked", "words", "style", "class", "domain")

_PLACEHOLDER: Final = re.compile(r"\{([a-z]+)\}")
_TEXTS: Final = (
    "name",
    "description",
    "reference",
    "purpose",
    "system",
    "chat",
    "base",
    "of_class",
)
_LISTS: Final = ("styles", "stop")

#: Of a file: a text is written anew, or one is written where there was none.
PURPOSES: Final = ("variation", "beginning")

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

    def parse(self, continuation: str) -> str:
        """Cut the generated sample out of a continuation.

        Args:
            continuation: What the model wrote after the prompt, without the prompt.

        Returns:
            The text before the next full marker line (all of it if there is none), stripped.
        """
        found = self._pattern.search(continuation)
        return (continuation if found is None else continuation[: found.start()]).strip()

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
    path, content = _read_file(
        name_or_path,
        folder=_FOLDER,
        keys=_KEYS,
        required=("name", "heading", "marker", "num_samples"),
    )
    try:
        return Prompt(**content)
    except ConfigError as error:
        raise ConfigError(f"prompt file {path}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What a model is asked to write.

    A chat model gets `chat` as a message, after the system's message `system`; a base model gets
    `base` to go on with, and stops at one of `stop`. In all of them these are replaced:

        {text}     the text that is to be written anew
        {blanked}  the same with some words replaced by "_"
        {words}    how many words the answer is to have
        {style}    one of `styles`, drawn for each text
        {class}    `of_class`, in which {label} is the text's class; nothing where there are none
        {domain}   what the texts are, in public words

    What is put in is not looked through again: braces in a text stay as they are.

    Attributes:
        name: The short name.
        purpose: ``"variation"`` of a text, which holds ``{text}`` or ``{blanked}``; or
            ``"beginning"``, which holds neither.
        chat: For a chat model; "" where the file is for base models alone.
        base: For a base model; "" where the file is for chat models alone.
        system: The message of the system; "" for none.
        of_class: What stands for ``{class}`` where texts have classes.
        styles: What to draw ``{style}`` from.
        stop: Strings that end the answer of a base model.
        description: What it is for.
        reference: Where it comes from.

    Raises:
        ConfigError: A value is missing or empty, or a placeholder is unknown or in a wrong place.
    """

    name: str
    purpose: str
    chat: str = ""
    base: str = ""
    system: str = ""
    of_class: str = ""
    styles: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    description: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        for key in _TEXTS:
            if not isinstance(getattr(self, key), str):
                raise ConfigError(f"prompt setting {key} must be text, got {getattr(self, key)!r}")
        for key in _LISTS:
            values = getattr(self, key)
            if not all(isinstance(value, str) and value for value in values):
                raise ConfigError(f"prompt setting {key} must be texts that are not empty")
        if not self.name.strip():
            raise ConfigError("prompt setting name must not be empty")
        check_choice("prompt setting purpose", self.purpose, PURPOSES)
        if not (self.chat.strip() or self.base.strip()):
            raise ConfigError("prompt settings chat and base must not both be empty")
        if self.of_class and "{label}" not in self.of_class:
            raise ConfigError(f"prompt setting of_class must hold {{label}}, got {self.of_class!r}")
        for key in ("chat", "base"):
            self._check_placeholders(key)

    def _check_placeholders(self, key: str) -> None:
        """Refuse a prompt that would not say what it is about."""
        prompt = getattr(self, key)
        if not prompt:
            return
        used = set(_PLACEHOLDER.findall(prompt))
        if unknown := sorted(used - set(PLACEHOLDERS)):
            raise ConfigError(
                f"prompt setting {key} holds the unknown placeholder {{{unknown[0]}}}; known are "
                + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            )
        of_text = bool(used & {"text", "blanked"})
        if of_text != (self.purpose == "variation"):
            must = "must" if self.purpose == "variation" else "must not"
            raise ConfigError(
                f'prompt setting {key} of a prompt with purpose = "{self.purpose}" {must} hold '
                "{text} or {blanked}"
            )
        if "style" in used and not self.styles:
            raise ConfigError(f"prompt setting {key} holds {{style}}, and styles is empty")

    def render(self, *, chat: bool, label: str = "", **values: str) -> str:
        """Write the prompt for one text.

        Args:
            chat: Whether it is the message to a chat model.
            label: The text's class; "" where there are none.
            values: What stands for the placeholders besides ``{class}``.

        Raises:
            ConfigError: The file has no prompt for such a model.
        """
        prompt = self.chat if chat else self.base
        if not prompt:
            kind, key = ("chat", "chat") if chat else ("base", "base")
            raise ConfigError(f"prompt {self.name!r} is not for {kind} models: it has no {key!r}")
        held = {**values, "class": self.of_class.replace("{label}", label) if label else ""}
        return _PLACEHOLDER.sub(lambda found: held.get(found[1], ""), prompt)


def load_instruction(name_or_path: str | Path, *, purpose: str) -> Instruction:
    """Read an instruction by its short name or from a JSON file.

    Args:
        name_or_path: A bundled name (``"paraphrase"``) or the path of a ``.json`` file with the
            keys of `Instruction`.
        purpose: What it must be for.

    Raises:
        ConfigError: The file is missing, is not such a JSON object, holds a wrong value, or is for
            something else.
    """
    path, content = _read_file(
        name_or_path, folder=_INSTRUCTIONS, keys=(*_TEXTS, *_LISTS), required=("name", "purpose")
    )
    for key in _LISTS:
        if not isinstance(content.get(key, []), list):
            raise ConfigError(f"prompt file {path}: {key} must be a list of texts")
    try:
        given: dict[str, Any] = {**content}
        given.update((key, tuple(content[key])) for key in _LISTS if key in content)
        found = Instruction(**given)
    except ConfigError as error:
        raise ConfigError(f"prompt file {path}: {error}") from error
    if found.purpose != purpose:
        raise ConfigError(
            f"prompt {str(name_or_path)!r} is for a {found.purpose}, not for a {purpose}"
        )
    return found


def _read_file(
    name_or_path: str | Path, *, folder: Path, keys: Sequence[str], required: Sequence[str]
) -> tuple[Path, dict[str, Any]]:
    """Read the JSON object of a prompt.

    Args:
        name_or_path: The name of a file in `folder` without its ending, or the path of a ``.json``
            file.
        folder: Of the bundled prompts.
        keys: That the object may hold.
        required: Those of them that it must hold.

    Returns:
        Where it is, for sentences about its values, and the object.

    Raises:
        ConfigError: The file is missing, is not such a JSON object, or holds or lacks a key.
    """
    given = str(name_or_path)
    path = Path(given)
    if path.suffix != ".json":
        bundled = {file.stem: file for file in sorted(folder.glob("*.json"))}
        if given not in bundled:
            raise ConfigError(
                f"prompt {given!r} is not known: give one of {', '.join(bundled)} "
                "or the path of a .json file"
            )
        path = bundled[given]
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"prompt file {path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"prompt file {path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"prompt file {path} must hold one JSON object")
    if unknown := sorted(set(content) - set(keys)):
        raise ConfigError(
            f"prompt file {path} holds the unknown key {unknown[0]!r}: allowed are "
            + ", ".join(keys)
        )
    if missing := [key for key in required if key not in content]:
        raise ConfigError(f"prompt file {path} lacks the key {missing[0]!r}")
    return path, content
