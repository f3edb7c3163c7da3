"""A chat model that goes on with prompts."""

from __future__ import annotations

import pytest

from flower_privsyn.generation.prompted import below_heading


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
    assert below_heading("Sample 4", answer) == text
