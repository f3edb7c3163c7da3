"""Prompts that number text samples: what is rendered, what is parsed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation.prompts import Prompt, load_prompt

GOOD = {"name": "mine", "heading": "Read:", "marker": "Text {number}:", "num_samples": 4}


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


def test_a_prompt_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(GOOD))
    assert load_prompt(path).render(["a"]) == "Read:\nText 1:\na\nText 2:\n"
    assert load_prompt(str(path)).parse("b\nText 3:\nc") == "b"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heading": ""}, "heading"),
        ({"marker": "Text"}, "marker"),
        ({"marker": "a\n{number}"}, "marker"),
        ({"num_samples": 1}, "num_samples"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_prompt_file_is_one_sentence_that_names_the_key_and_file(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ConfigError, match=words) as caught:
        load_prompt(path)
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)
