"""A chat model that goes on with prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flower_privsyn.generation import SamplingParameters
from flower_privsyn.generation.prompted import ByMessages
from flower_privsyn.testing import EchoGenerator

SAMPLING = SamplingParameters(seed=3, max_new_tokens=20)


class Chat(EchoGenerator):
    """Answers every message alike, and keeps what it was told."""

    name = "chat"

    def __init__(self, answer: str = "a new text") -> None:
        self.says = answer
        self.told: list[tuple[str, str]] = []
        self.sampling: SamplingParameters | None = None

    def generate(self, prompts: Sequence[str], **how: Any) -> list[list[str]]:
        self.told += [(how["system"], message) for message in prompts]
        self.sampling = how["sampling"]
        return [[self.says] for _ in prompts]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("a new text", "a new text"),
        ("\n a new text \n", "a new text"),
        ('"a new text"', "a new text"),
        ("\u201ca new text\u201d", "a new text"),
        # Quotes around parts of it are its own.
        ('"a" and "b"', '"a" and "b"'),
        ("\u201cNo,\u201d she said. \u201cNot yet.\u201d",) * 2,
        ("Sample 4\na new text", "a new text"),
        ("**Sample 4:**\n\na new text", "a new text"),
        ("## Sample 4\n#tagged text", "#tagged text"),
        ("Sample 4\r\na new text\r\nof two lines", "a new text\r\nof two lines"),
        ("Sample 40 is a new text", "Sample 40 is a new text"),
        # Models write all of the list again, and go on with it.
        ("a new text\nSample 5\nanother", "a new text"),
        ("### Sample 3\nold\n\n### Sample 4\na new text\n### Sample 5\nx", "a new text"),
        ("Sure! Here is sample 4:\n\nSample 4\na new text", "a new text"),
        ("Sample 1\nanother list", ""),
        ("a first paragraph\n\nand a second", "a first paragraph\n\nand a second"),
    ],
)
def test_a_heading_that_is_repeated_is_no_part_of_the_text(answer: str, text: str) -> None:
    generator = ByMessages(Chat(answer), instruction="")
    ((found,),) = generator.generate(["Sample 3\nold\nSample 4\n"], sampling=SAMPLING)
    assert found == text


def test_what_ends_a_text_is_looked_for_behind_headings() -> None:
    answer = "Sample 4\na new text END and more"
    chat = Chat(answer)
    sampling = SamplingParameters(seed=3, stop=("\nSample ", "END"))
    found = ByMessages(chat, instruction="").generate(["Sample 4\n"], sampling=sampling)
    assert found == [["a new text"]]
    assert chat.sampling is not None
    assert chat.sampling.stop == ()
