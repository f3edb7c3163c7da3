"""Texts as the evaluation of PrE-Text and POPri tokenizes them: twice.

The published scripts split a text into token strings, put the tokenizer's beginning and end token
around them, and give the strings to the tokenizer again as if they were words. A byte-level
tokenizer writes the space before a word as a letter of its own (U+0120), and takes that letter
apart the second time: " show" becomes "Ġshow", and then "ĠÄ", "ł", "show". Texts become nearly
three times longer, and about half of the second tokens are those two.

This is here to compare with the two papers' tables, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ModelError

#: Length to which the papers cut a text, in tokens of the second kind.
PAPER_TOKENS = 64

#: How byte-level tokenizers write a space.
_SPACE = "Ġ"


def retokenized(
    tokenizer: Any, texts: Sequence[str], *, max_tokens: int = PAPER_TOKENS
) -> list[list[int]]:
    """Tokenize texts twice.

    Args:
        tokenizer: a fast byte-level tokenizer, such as GPT-2's or that of `privsyn-lm`.
        texts: (n,).
        max_tokens: longer rows are cut, >= 2.

    Returns:
        (n,) token ids, the beginning token first and, where it is not cut off, the end token last.

    Raises:
        ConfigError: max_tokens is out of range.
        ModelError: the tokenizer is not byte-level or has no beginning or end token.

    References:
        Hou et al. 2024 (PrE-Text) and 2025 (POPri), the released downstream evaluation.
    """
    check_whole("max_tokens", max_tokens, ge=2)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is None or end is None:
        raise ModelError("double tokenization needs a tokenizer with a beginning and an end token")
    if not tokenizer.convert_ids_to_tokens(_plain(tokenizer, " a"))[0].startswith(_SPACE):
        raise ModelError(
            "double tokenization needs a byte-level tokenizer, which writes a space as 'Ġ'"
        )
    known: dict[int, list[int]] = {}
    rows = []
    for row in tokenizer(
        list(texts),
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )["input_ids"]:
        twice = [begin]
        for token in row:
            if len(twice) >= max_tokens:
                break
            if token not in known:
                # A word among words: the slow tokenizer of the papers puts a space before each.
                known[token] = _plain(tokenizer, " " + tokenizer.convert_ids_to_tokens(token))
            twice.extend(known[token])
        rows.append([*twice, end][:max_tokens])
    return rows


def space_tokens(tokenizer: Any) -> tuple[int, ...]:
    """What a space between words becomes, always the same tokens in a row: two with GPT-2's."""
    return tuple(_plain(tokenizer, " " + _SPACE))


def _plain(tokenizer: Any, text: str) -> list[int]:
    row: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return row
