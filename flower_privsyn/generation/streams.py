"""Random streams, one per text, and sampling from logits by the inverse distribution function.

A text's stream is keyed by the seed, the text itself and how often the same text came before in
the call (`backends.text_seeds`). What is drawn for a text therefore depends neither on the batch it
was put in nor on its place in the list, and equal texts (survivors drawn with replacement) still
differ. Models round differently in batches of another shape, so a draw that lands within rounding
error of a boundary may fall on the other side: exact independence of the batch size holds up to
that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import torch

#: Tokens that a nucleus is first looked for in.
_NUCLEUS: Final = 1024


def stream(seed: int) -> np.random.Generator:
    """Open the random stream of one text."""
    return np.random.Generator(np.random.PCG64(seed))


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, *, temperature: float, top_p: float
) -> torch.Tensor:
    """Draw one token per row by inverting the distribution function.

    ``torch.multinomial`` spends most of a small model's step on one random number per vocabulary
    entry; this needs one per row, which also makes a row's draw its own.

    Args:
        logits: (b, v) floating point; -inf marks a token that is never drawn.
        uniforms: (b,) float32 in [0, 1).
        temperature: >= 0; 0, and what float32 cannot divide by, takes the most likely token (the
            first of equal ones).
        top_p: In (0, 1].

    Returns:
        (b,) int64 token numbers.
    """
    import torch

    if temperature < 1e-30:
        return logits.argmax(dim=-1)
    # The same numbers as of float32 logits, which are as large again as the rest.
    scaled = logits if temperature == 1 else logits.float() / temperature
    probabilities = torch.softmax(scaled, dim=-1, dtype=torch.float32)  # (b, v)
    order = None
    if top_p < 1:
        reached = top_p * probabilities.sum(dim=-1, keepdim=True)
        # As many of the largest as reach it: sorting a vocabulary takes longer than a small model.
        found, order = probabilities.topk(min(_NUCLEUS, probabilities.shape[-1]), dim=-1)
        if bool((found.sum(dim=-1, keepdim=True) >= reached).all()):
            probabilities = found
        else:
            probabilities, order = probabilities.sort(dim=-1, descending=True, stable=True)
    cumulative = probabilities.cumsum(dim=-1)  # (b, v), or as many as were needed
    total = cumulative[:, -1:]
    if top_p < 1:
        # The smallest prefix that reaches top_p, the token that crosses it included.
        last = (cumulative < reached).sum(dim=-1, keepdim=True)
        total = cumulative.gather(-1, last.clamp_(max=cumulative.shape[-1] - 1))
    target = uniforms.to(total)[:, None] * total
    # Rounding must not lift the target to the total: nothing lies to the right of it.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    # right=True skips entries of probability zero, also for a target of exactly 0.
    drawn = torch.searchsorted(cumulative, target, right=True)
    if order is not None:
        drawn = order.gather(-1, drawn)
    return drawn.squeeze(-1)


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Group indices of similar length, the longest first, so that little padding is computed.

    Starting with the longest shows at once whether the memory suffices.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]
