"""Texts as the tokens that a causal language model reads, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.models.pretrained import context_of
from flower_privsyn.models.text_batches import text_batches

if TYPE_CHECKING:
    import torch

#: Logits of one forward pass held at a time where rows are only read.
MOST_LOGITS = 2**24


def first_token(tokenizer: Any) -> int:
    """What stands before a text: the beginning token, else the end token, else the class token.

    Raises:
        ModelError: The tokenizer has none of them.
    """
    for name in ("bos_token_id", "eos_token_id", "cls_token_id"):
        token = getattr(tokenizer, name, None)
        if token is not None:
            return int(token)
    raise ModelError(
        "the model's tokenizer has no token to begin a text with (bos_token, eos_token or "
        "cls_token)"
    )


def text_window(network: Any, max_tokens: int) -> int:
    """`max_tokens`, or what the model's context holds besides the first token."""
    context = context_of(network)
    return max_tokens if context is None or context == 1 else min(max_tokens, context - 1)


def check_window(network: Any, needed: int, *, called: str, max_tokens: int) -> None:
    """Refuse a model that cannot read the rows of a training.

    Args:
        network: the model.
        needed: tokens of the longest row, without the first one.
        called: the setting that names it, and its value.
        max_tokens: the setting that the length of a row follows from.

    Raises:
        ConfigError: its context is shorter.
    """
    window = text_window(network, needed)
    if window < needed:
        raise ConfigError(
            f"{called} reads at most {window} tokens after the beginning, and rows of {needed} "
            f"are to be learnt: lower max-tokens = {max_tokens}"
        )


def token_rows(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, without any that the tokenizer would add."""
    return [
        row
        for batch in text_batches(texts)
        for row in tokenizer(
            list(texts[batch]),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # no line about texts beyond the context: they are split
        )["input_ids"]
    ]


def batches_by_length(
    rows: Sequence[Sequence[int]],
    block: Sequence[int],
    *,
    vocabulary: int,
    most_logits: int = MOST_LOGITS,
) -> list[list[int]]:
    """Rows to read together: of like lengths, so that a batch is hardly padded.

    Args:
        rows: of token ids.
        block: which of them, in any order.
        vocabulary: logits of a position.
        most_logits: of a batch at most so many are held, or one row's.
    """
    order = sorted(block, key=lambda index: -len(rows[index]))
    found = []
    start = 0
    while start < len(order):
        size = max(1, most_logits // (len(rows[order[start]]) * vocabulary))
        found.append(order[start : start + size])
        start += size
    return found


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as one batch: the tokens, and 1 where there is one; both (rows, longest) integers.

    Padding follows a row, where no token of it looks.
    """
    import torch

    tokens = torch.zeros((len(rows), max(len(row) for row in rows)), dtype=torch.long)
    attention = torch.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, : len(row)] = torch.tensor(row, dtype=torch.long)
        attention[place, : len(row)] = 1
    return tokens, attention


def next_token_logits(
    network: Any, rows: Sequence[Sequence[int]], *, bfloat16: bool = False
) -> torch.Tensor:
    """What a model says of every token that follows another, one row after the other.

    Args:
        network: a causal language model.
        rows: of token ids.
        bfloat16: multiply in bfloat16.

    Returns:
        (positions, vocabulary) float32.
    """
    import torch

    tokens, attention = (part.to(network.device) for part in padded(rows))
    with (
        torch.inference_mode(),
        torch.autocast(network.device.type, dtype=torch.bfloat16, enabled=bfloat16),
    ):
        logits = network(input_ids=tokens, attention_mask=attention, use_cache=False).logits
    found: torch.Tensor = logits[:, :-1][attention[:, 1:].bool()].float()
    return found
