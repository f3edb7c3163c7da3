"""Texts that a tokenizer takes at a time: it holds hundreds of bytes for each character of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

#: Enough to use every core; where every other character is a token, 0.2 GB of tokens.
MOST_TEXTS: Final = 1024
MOST_CHARACTERS: Final = 2**18


def text_batches(texts: Sequence[str]) -> Iterator[slice]:
    """Consecutive batches of at most `MOST_TEXTS` texts and `MOST_CHARACTERS` characters.

    A text with more characters than that is a batch of its own.

    Args:
        texts: The n texts.

    Yields:
        Slices that together cover `range(n)`, in order.
    """
    start = characters = 0
    for place, text in enumerate(texts):
        full = place - start == MOST_TEXTS or characters + len(text) > MOST_CHARACTERS
        if full and place > start:
            yield slice(start, place)
            start, characters = place, 0
        characters += len(text)
    if start < len(texts):
        yield slice(start, len(texts))
