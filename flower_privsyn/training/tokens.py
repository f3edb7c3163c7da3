"""Texts as the tokens that a causal language model reads, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flower_privsyn.errors import ConfigError, ModelError
from flower_privsyn.models.pretrained import context_of, logits_at, padded
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

    with torch.inference_mode():
        logits, _ = predictions(network, rows, bfloat16=bfloat16)
    return logits


def predictions(
    network: Any, rows: Sequence[Sequence[int]], *, bfloat16: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `next_token_logits`, with a gradient; and the (positions,) tokens that follow."""
    import torch

    tokens, attention = (part.to(network.device) for part in padded(rows))
    following = torch.zeros_like(attention, dtype=torch.bool)
    following[:, 1:] = attention[:, 1:].bool()
    places = following.roll(-1, dims=1)  # no row's first token follows another
    inputs = {"input_ids": tokens, "attention_mask": attention, "use_cache": False}
    with torch.autocast(network.device.type, dtype=torch.bfloat16, enabled=bfloat16):
        # Of every shape that it meets in bfloat16 oneDNN keeps what it makes, and the number of
        # positions differs from batch to batch: gigabytes in a thousand steps.
        logits = (
            network(**inputs).logits[places] if bfloat16 else logits_at(network, places, **inputs)
        )
    return logits.float(), tokens[following]


def scored(
    network: Any,
    rows: Sequence[Sequence[int]],
    *,
    begin: int,
    window: int,
    marked: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> npt.NDArray[np.float64]:
    """What a model makes of the tokens of rows: every one of them is predicted once.

    A row of more tokens than `window` is read in pieces, each after a first token.

    Args:
        network: a causal language model in evaluation mode.
        rows: n of token ids, without a first token.
        begin: the first token of a piece.
        window: tokens of a piece, without the first, >= 1.
        marked: a token that is counted apart; None for none.
        progress: called with the number of rows just done.

    Returns:
        (3, n) of each row the sum of its negative log-probabilities in nats, the number of its
        tokens that are the model's first choice, and of these that are `marked`.
    """
    import torch

    owners, starts = [], []
    for index, row in enumerate(rows):
        for start in range(0, len(row), window):
            owners.append(index)
            starts.append(start)
    pieces = [
        [begin, *rows[owner][start : start + window]]
        for owner, start in zip(owners, starts, strict=True)
    ]
    if progress is not None and (empty := sum(len(row) == 0 for row in rows)):
        progress(empty)
    found = np.zeros((3, len(rows)))
    vocabulary = int(network.get_output_embeddings().weight.shape[0])
    for batch in batches_by_length(pieces, range(len(pieces)), vocabulary=vocabulary):
        read = [pieces[index] for index in batch]
        with torch.inference_mode():
            logits, following = predictions(network, read)
        nats = torch.nn.functional.cross_entropy(logits, following, reduction="none").double()
        hits = logits.argmax(dim=-1) == following
        whose = np.repeat([owners[index] for index in batch], [len(row) - 1 for row in read])
        for place, values in enumerate((nats, hits, hits & (following == marked))):
            counted = values.cpu().numpy()
            found[place] += np.bincount(whose, weights=counted, minlength=len(rows))
        if progress is not None:
            progress(sum(starts[index] == 0 for index in batch))
    return found
