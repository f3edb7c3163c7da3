"""Prompts: what is rendered and parsed, and what files may hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.prompts import Prompt, load_instruction, load_prompt

LIST = {"name": "mine", "heading": "Read:", "marker": "Text {number}:", "num_samples": 4}
ASKED = {"name": "mine", "purpose": "variation", "base": "Say {text} again:", "stop": ["\n"]}


@pytest.fixture
def prompt() -> Prompt:
    return load_prompt("pre-text")


def test_the_bundled_prompt_announces_six_and_numbers_the_fourth(prompt: Prompt) -> None:
    rendered = prompt.render(["one\n\ntwo", " three ", "four\r\nfive"])
    assert rendered.splitlines() == [
        "Here are 6 diverse original text samples:",
        "Original Text Sample 1",
        "one two",
        "Original Text Sample 2",
        "three",
        "Original Text Sample 3",
        "four five",
        "Original Text Sample 4",
    ]
    assert rendered.endswith("Sample 4\n")


@pytest.mark.parametrize(
    ("continuation", "text"),
    [
        ("Some text.\nOriginal Text Sample 5\nmore", "Some text."),
        ("Some text.\nOriginal Text Sample 5", "Some text."),
        ("Some text.\nOriginal Text Sample 12  \r\nmore", "Some text."),
        ("The Original was lost.\nOriginal Text Sample 5\n", "The Original was lost."),
        ("As in Original Text Sample 3 above.", "As in Original Text Sample 3 above."),
        ("x\nOriginal Text Sample 5 is nice", "x\nOriginal Text Sample 5 is nice"),
        ("Original Text Sample 5\n", ""),
        ("", ""),
    ],
)
def test_only_a_full_marker_line_ends_a_sample(
    prompt: Prompt, continuation: str, text: str
) -> None:
    assert prompt.parse(continuation) == text


@pytest.mark.parametrize("name", ["paraphrase", "style", "fill-blanks", "write"])
@pytest.mark.parametrize("chat", [False, True])
def test_the_bundled_instructions_say_everything_they_were_given(name: str, chat: bool) -> None:
    purpose = "beginning" if name == "write" else "variation"
    instruction = load_instruction(name, purpose=purpose)
    values = {"text": "T-E-X-T", "blanked": "T-E-X-T", "words": "37", "style": "S-T-Y-L-E"}
    prompt = instruction.render(chat=chat, label="C-L-A-S-S", domain="D-O-M-A-I-N", **values)
    assert "{" not in prompt
    assert all(word in prompt for word in ("C-L-A-S-S", "D-O-M-A-I-N"))
    assert ("37" in prompt) is (chat or name != "paraphrase")
    assert ("T-E-X-T" in prompt) is (purpose == "variation")
    assert ("S-T-Y-L-E" in prompt) is bool(instruction.styles)
    assert "class" not in instruction.render(chat=chat, domain="D-O-M-A-I-N", **values)
    assert instruction.stop


def test_files_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(LIST), encoding="utf-8-sig")  # with a byte order mark
    assert load_prompt(path).render(["a"]) == "Read:\nText 1:\na\nText 2:\n"
    assert load_prompt(str(path)).parse("b\nText 3:\nc") == "b"
    path.write_text(json.dumps(ASKED))
    asked = load_instruction(path, purpose="variation")
    # Braces in a text stay as they are.
    assert asked.render(chat=False, text="{words} {no}", words="9") == "Say {words} {no} again:"
    with pytest.raises(ConfigError, match="not for chat models"):
        asked.render(chat=True, text="a")


def as_instruction(path: Path) -> object:
    return load_instruction(path, purpose="variation")


@pytest.mark.parametrize(
    ("read", "content", "named"),
    [
        (load_prompt, LIST | {"heading": ""}, "heading"),
        (load_prompt, LIST | {"marker": "Text"}, "marker"),
        (load_prompt, LIST | {"marker": "a\n{number}"}, "marker"),
        (load_prompt, LIST | {"num_samples": 1}, "num_samples"),
        (load_prompt, LIST | {"colour": "red"}, "colour"),
        (load_prompt, {"name": "mine"}, "marker"),
        (load_prompt, [1], "JSON object"),
        (as_instruction, ASKED | {"purpose": "poem"}, "purpose"),
        (as_instruction, ASKED | {"base": "Say it again:"}, "{text} or {blanked}"),
        (as_instruction, ASKED | {"purpose": "beginning"}, "{text} or {blanked}"),
        (as_instruction, ASKED | {"base": "Say {text} {loudly}:"}, "{loudly}"),
        (as_instruction, ASKED | {"base": "", "chat": " "}, "chat and base"),
        (as_instruction, ASKED | {"styles": "loud"}, "styles"),
        (as_instruction, ASKED | {"tone": "high"}, "tone"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_key(
    read: Callable[[Path], object], content: Any, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"bad\.json") as caught:
        read(path)
    assert named in str(caught.value)
