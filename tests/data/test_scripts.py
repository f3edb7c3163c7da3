"""Scripts of text and of a model's tokens."""

from __future__ import annotations

import pytest

from flower_privsyn.data.scripts import (
    scripts_of,
    scripts_of_tokens,
    unknown_scripts,
)
from flower_privsyn.embedding import load_tokenizer


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["abc \u00fc", "123 !"], {"LATIN": 1.0}),
        (["\u4eca\u5929\u5929", "a"], {"CJK": 0.75, "LATIN": 0.25}),
        (["\u043f\u0440\u03b1\uff41"], {"CYRILLIC": 0.5, "GREEK": 0.25, "LATIN": 0.25}),
        (
            ["\u3042\u30a2\ud55c\u0905"],
            dict.fromkeys(("HIRAGANA", "KATAKANA", "HANGUL", "DEVANAGARI"), 0.25),
        ),
        (["1 2 3"], {}),
        ([], {}),
    ],
)
def test_letters_are_counted_by_script(texts: list[str], expected: dict[str, float]) -> None:
    assert scripts_of(texts) == expected
    assert list(scripts_of(texts)) == list(expected)


def test_a_model_knows_the_scripts_of_its_tokens() -> None:
    tokens = scripts_of_tokens(load_tokenizer("all-MiniLM-L6-v2")[0])
    text = scripts_of(["Das ist \u0422\u0435\u043a\u0441\u0442", "123 ..."])
    assert unknown_scripts(text, tokens) == ["CYRILLIC"]
    # A word of another script is no reason for a warning.
    text = scripts_of(["The word \u0438\u0434\u0435\u044f is Russian, and nothing else in here is"])
    assert unknown_scripts(text, tokens) == []
