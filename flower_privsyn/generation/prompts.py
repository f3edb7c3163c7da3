"""Prompts: data files that number samples or hold placeholders; and what of an answer is used."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from annotated_types import Ge

from flower_privsyn.checks import Settings
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import user_path

_FOLDER: Final = Path(__file__).with_name("prompts")

#: Examples in a list, as in PrE-Text.
NUM_EXAMPLES: Final = 3

#: What stands in braces in a prompt, and is replaced.
PLACEHOLDERS: Final = ("text", "blanked", "words", "style", "class", "domain")

_PLACEHOLDER: Final = re.compile(r"\{([a-z]+)\}")

#: To a chat model, of a prompt that says nothing itself.
_INSTRUCTION = (
    "The user shows a list that breaks off where the next entry is to stand. What it lists: "
    "{domain}. You write that one entry: of the kind of the others, and as different from each of "
    "them as they are from one another. You answer with the text alone: no heading, no number, no "
    "remark, no quotes."
)


#: What a quotation ends with, and what stands for it inside one.
QUOTE: Final = '"'
_INNER: Final = "'"


def opened(domain: str) -> str:
    """The beginning of a quotation, with which a generator goes on that has learnt some.

    After it even a small model writes whole sentences of a kind; after nothing it writes anything.

    Args:
        domain: what the quotations are from, in public words.
    """
    return f"From {domain}:\n\n{QUOTE}"


def quoted(domain: str, text: str) -> str:
    """A text as such a quotation, for a generator to learn from.

    Args:
        domain: the same.
        text: that is quoted.
    """
    return f"{opened(domain)}{text.replace(QUOTE, _INNER)}{QUOTE}"


def flattened(text: str) -> str:
    """A text with one blank in place of all white space between words."""
    return " ".join(text.split())


def unusable(text: str, *, known: Container[str], examples: Container[str] = ()) -> str:
    """Why a text that was written is not to be kept, by `expand.DROP_REASONS`; "" for one that is.

    Args:
        text: as it would be kept.
        known: texts that are kept, as `flattened` has them.
        examples: those in its prompt, the same.
    """
    flat = flattened(text)
    reasons = {
        "empty": not flat,
        "broken-character": "\ufffd" in flat,
        "copy-of-example": flat in examples,
        "duplicate": flat in known,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True, kw_only=True)
class _PromptFile(Settings):
    """What a JSON file holds under the names of the fields."""

    name: str
    """The short name."""
    description: str = ""
    """What it is for."""
    reference: str = ""
    """Where it comes from."""

    _noun: ClassVar = "prompt setting"


@dataclass(frozen=True, kw_only=True)
class Prompt(_PromptFile):
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

    Raises:
        ConfigError: A value is empty, spans lines, lacks its field or is out of range.

    References:
        Hou et al., "PrE-Text: Training Language Models on Private Federated Data in the Age of
        LLMs", ICML 2024, figure 3.
    """

    heading: str
    """One line; ``{num_samples}`` is replaced by the number below, ``{domain}`` by what the texts
    are.
    """
    marker: str
    """One line that holds ``{number}`` once, and some other text."""
    num_samples: Annotated[int, Ge(NUM_EXAMPLES + 1)]
    """How many samples the heading announces; more than the three that are given as examples."""
    instruction: str = _INSTRUCTION
    """What is said, as the system's message, to a chat model that gets the prompt as a message; not
    said to one that goes on with it.
    """

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
        for key in ("name", "heading", "marker"):
            value = getattr(self, key)
            if not value.strip() or "\n" in value:
                raise ConfigError(
                    f"prompt setting {key} must be one non-empty line of text, got {value!r}"
                )
        before, number, after = self.marker.partition("{number}")
        if not number or "{number}" in after or not (before + after).strip():
            raise ConfigError(
                "prompt setting marker must hold {number} exactly once beside other text, "
                f"got {self.marker!r}"
            )

    def about(self, domain: str) -> Prompt:
        """The prompt with public words for what the texts are in place of ``{domain}``."""
        heading, said = (
            held.replace("{domain}", domain) for held in (self.heading, self.instruction)
        )
        return replace(self, heading=heading, instruction=said)

    def render(self, examples: Sequence[str]) -> str:
        """Write the prompt that asks for the sample after ``examples``.

        Args:
            examples: The given samples, fewer than ``num_samples`` and none empty; every run of
                white space, newlines included, becomes one blank.

        Returns:
            The prompt; it ends with the marker line of the next sample and a newline.
        """
        parts = [self.heading.replace("{num_samples}", str(self.num_samples)) + "\n"]
        for number, sample in enumerate(examples, start=1):
            parts += [self._marker_line(number), flattened(sample), "\n"]
        return "".join([*parts, self._marker_line(len(examples) + 1)])

    def parse(self, continuation: str) -> str:
        """Cut the generated sample out of a continuation.

        Args:
            continuation: What the model wrote after the prompt, without the prompt.

        Returns:
            The text before the next full marker line (all of it if there is none), stripped.
        """
        before, _, after = map(re.escape, self.marker.partition("{number}"))
        # Trailing blanks are forgiven: models often write them before the line break.
        found = re.search(rf"(?m)^{before}\d+{after}[ \t\r]*$", continuation)
        return (continuation if found is None else continuation[: found.start()]).strip()

    @property
    def stop(self) -> str:
        """The string at which generation may stop: a newline and the marker up to its number."""
        return "\n" + self.marker.partition("{number}")[0]

    def _marker_line(self, number: int) -> str:
        return self.marker.replace("{number}", str(number)) + "\n"


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
    return _read(Prompt, name_or_path, folder=_FOLDER)


@dataclass(frozen=True, kw_only=True)
class Instruction(_PromptFile):
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

    Raises:
        ConfigError: A value is missing or empty, or a placeholder is unknown or in a wrong place.
    """

    purpose: Literal["variation", "beginning"]
    """``"variation"`` of a text, which holds ``{text}`` or ``{blanked}``; or ``"beginning"``, where
    there was no text, which holds neither.
    """
    chat: str = ""
    """For a chat model; "" where the file is for base models alone."""
    base: str = ""
    """For a base model; "" where the file is for chat models alone."""
    system: str = ""
    """The message of the system; "" for none."""
    of_class: str = ""
    """What stands for ``{class}`` where texts have classes."""
    styles: tuple[str, ...] = ()
    """What to draw ``{style}`` from."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer of a base model."""

    def __post_init__(self) -> None:
        """Check every value."""
        super().__post_init__()
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
            kind = "chat" if chat else "base"
            raise ConfigError(f"prompt {self.name!r} is not for {kind} models: it has no {kind!r}")
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
    found = _read(Instruction, name_or_path, folder=_FOLDER / "instructions")
    if found.purpose != purpose:
        raise ConfigError(
            f"prompt {str(name_or_path)!r} is for a {found.purpose}, not for a {purpose}"
        )
    return found


P = TypeVar("P", bound=_PromptFile)


def _read(kind: type[P], name_or_path: str | Path, *, folder: Path) -> P:
    """Read a prompt.

    Args:
        kind: What the file holds.
        name_or_path: The name of a file in `folder` without its ending, or the path of a ``.json``
            file.
        folder: Of the bundled prompts.

    Raises:
        ConfigError: The file is missing, is not such a JSON object, or holds a wrong value.
    """
    given = str(name_or_path)
    path = user_path(given)
    if path.suffix != ".json":
        bundled = {file.stem: file for file in sorted(folder.glob("*.json"))}
        if given not in bundled:
            raise ConfigError(
                f"prompt {given!r} is not known: give one of {', '.join(bundled)} "
                "or the path of a .json file"
            )
        path = bundled[given]
    try:
        return kind(**json.loads(path.read_text(encoding="utf-8-sig")))
    except TypeError as error:  # which names a key that is missing or unknown
        raise ConfigError(
            f"prompt file {path} must hold one JSON object with some of the keys "
            f"{', '.join(kind.declared)}: {error}"
        ) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"prompt file {path} cannot be read: {reason}") from error
    except ValueError as error:
        raise ConfigError(f"prompt file {path}: {error}") from error
