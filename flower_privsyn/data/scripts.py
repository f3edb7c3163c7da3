"""Which scripts text is written in, and whether a model's tokens are of them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

#: Share of a text's letters from which on a script counts.
_IN_TEXT: Final = 0.1

#: Share of a model's tokens below which it does not know a script. all-MiniLM-L6-v2, which is
#: English, has 1.6 % of its tokens in Chinese characters; models of many languages have more.
_IN_TOKENS: Final = 0.02

# First words of letters' names that say how they look, and not of which script they are.
_LOOKS: Final = ("FULLWIDTH", "HALFWIDTH", "MODIFIER", "MATHEMATICAL")
_WORDS: Final = {"CJK": "Chinese characters"}


def scripts_of(texts: Iterable[str]) -> dict[str, float]:
    """The share of letters that each script has, the most frequent first.

    A script is a word of its letters' names in Unicode: "LATIN", "CJK", "CYRILLIC". It is no
    language: French and English are not told apart.
    """
    characters: Counter[str] = Counter()
    for text in texts:
        characters.update(text)
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            letters[_script(character)] += count
    return {script: count / letters.total() for script, count in letters.most_common()}


def scripts_of_tokens(tokenizer: Any) -> dict[str, float]:
    """The share of a tokenizer's tokens that hold a letter of each script.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
    """
    size = tokenizer.get_vocab_size()
    found: Counter[str] = Counter()
    for token in range(size):
        # One by one: the tokens of bytes are letters only where they are decoded.
        found.update({_script(letter) for letter in tokenizer.decode([token]) if letter.isalpha()})
    return {script: count / max(1, size) for script, count in found.items()}


def unknown_scripts(text: Mapping[str, float], tokens: Mapping[str, float]) -> list[str]:
    """The scripts of a text that a model's tokens are not of.

    Args:
        text: from `scripts_of`.
        tokens: from `scripts_of_tokens`.
    """
    return [
        script
        for script, share in text.items()
        if share >= _IN_TEXT and tokens.get(script, 0.0) < _IN_TOKENS
    ]


def in_words(script: str) -> str:
    """A script's name for people."""
    return _WORDS.get(script, script.capitalize())


def _script(letter: str) -> str:
    words = unicodedata.name(letter, "UNKNOWN").replace("-", " ").split()
    return next((word for word in words if word not in _LOOKS), words[0])
