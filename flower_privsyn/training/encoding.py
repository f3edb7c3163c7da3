"""Prompts and responses as the generator's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flower_privsyn.errors import ConfigError, ModelError


@dataclass(frozen=True, kw_only=True)
class EncodedPair:
    """The tokens of one preference pair.

    Attributes:
        index: The pair's place among those given.
        prompt: Tokens the generator would have been given, special ones included.
        chosen: Tokens of the preferred response with its end.
        rejected: Tokens of the other; empty for supervised fine-tuning.
    """

    index: int
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]

    @property
    def longest(self) -> int:
        """Tokens of the prompt with the longer response."""
        return len(self.prompt) + max(len(self.chosen), len(self.rejected))


def encode_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Tokenize prompts exactly as `TransformersGenerator` does, none of them cut.

    Raises:
        ModelError: A prompt has no tokens and the model has none to begin with.
    """
    rows = _tokenize(tokenizer, prompts)
    begin = tokenizer.bos_token_id
    begin = tokenizer.eos_token_id if begin is None else begin
    for index, row in enumerate(rows):
        if not row and begin is None:
            raise ModelError(f"prompts[{index}] is empty and the model has no token to begin with")
    return [row or [begin] for row in rows]


def encode_responses(
    tokenizer: Any, prompts: Sequence[str], prompt_rows: Sequence[list[int]], texts: Sequence[str]
) -> list[list[int]]:
    """Tokenize responses as they follow their prompts; the prompts' tokens are never touched.

    The tokens are those of prompt and response in one piece, less the prompt's: some tokenizers
    write the first word of a text differently from the same word after a line break. Where the
    two would merge across the boundary, or the tokenizer closes every text with a token, the
    response is tokenized on its own: the generator cannot merge into its prompt either.

    Args:
        tokenizer: A fast tokenizer.
        prompts: (n,) texts.
        prompt_rows: Their tokens by `encode_prompts`.
        texts: (n,) responses.

    Returns:
        (n,) lists of tokens, empty for an empty response.
    """
    together = _tokenize(
        tokenizer, [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    )
    alone = _tokenize(tokenizer, texts, add_special_tokens=False)
    rows = []
    for prompt, both, single in zip(prompt_rows, together, alone, strict=True):
        joined = both[: len(prompt)] == prompt and len(both) > len(prompt)
        rows.append((both[len(prompt) :] if joined else single) if single else [])
    return rows


def encode_pairs(
    tokenizer: Any,
    pairs: Sequence[Any],
    *,
    max_new_tokens: int | None,
    chosen_only: bool,
) -> list[EncodedPair]:
    """Tokenize preference pairs, each response with its end unless the generator had cut it.

    Args:
        tokenizer: A fast tokenizer.
        pairs: (n,) `PreferencePair`.
        max_new_tokens: The generator's limit. A response that stopped by itself fits into it
            together with its end, one that was cut fills it: so nothing needs to be remembered
            from generation.
        chosen_only: Leave the rejected responses empty.

    Raises:
        ConfigError: A response has no tokens.
    """
    prompts = [pair.prompt for pair in pairs]
    prompt_rows = encode_prompts(tokenizer, prompts)

    def encode(texts: Sequence[str], ends: Sequence[str]) -> list[list[int]]:
        whole = [text + end for text, end in zip(texts, ends, strict=True)]
        rows = encode_responses(tokenizer, prompts, prompt_rows, whole)
        if max_new_tokens is None:
            return rows
        bare = encode_responses(tokenizer, prompts, prompt_rows, texts)
        return [
            row if len(row) <= max_new_tokens else cut for row, cut in zip(rows, bare, strict=True)
        ]

    chosen = encode([pair.chosen for pair in pairs], [pair.chosen_end for pair in pairs])
    rejected: list[list[int]] = [[] for _ in pairs]
    if not chosen_only:
        rejected = encode([pair.rejected for pair in pairs], [pair.rejected_end for pair in pairs])
    for index, (good, bad) in enumerate(zip(chosen, rejected, strict=True)):
        for name, row in (("chosen", good), ("rejected", bad)):
            if not row and not (chosen_only and name == "rejected"):
                raise ConfigError(f"preference pair {index}: {name} has no tokens")
    return [
        EncodedPair(index=index, prompt=prompt, chosen=good, rejected=bad)
        for index, (prompt, good, bad) in enumerate(zip(prompt_rows, chosen, rejected, strict=True))
    ]


def _tokenize(tokenizer: Any, texts: Sequence[str], **options: Any) -> list[list[int]]:
    if not texts:
        return []
    rows: list[list[int]] = tokenizer(
        list(texts),
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,  # no line about texts beyond the context: they are left out by name
        **options,
    )["input_ids"]
    return rows
