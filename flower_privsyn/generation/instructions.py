"""Instructions for a language model: data files with placeholders, for base and for chat models."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flower_privsyn.checks import check_choice
from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.prompt_files import read_prompt_file

_FOLDER = Path(__file__).with_name("prompts") / "instructions"

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
    path, content = read_prompt_file(
        name_or_path, folder=_FOLDER, keys=(*_TEXTS, *_LISTS), required=("name", "purpose")
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
