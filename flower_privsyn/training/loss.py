"""The loss of a batch of rows and its gradient, by the text alone or with a teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flower_privsyn.training.teacher import TeacherTargets
from flower_privsyn.training.tokens import padded

_IGNORED = -100


def add_gradient(
    torch: Any,
    network: Any,
    rows: Sequence[Sequence[int]],
    chosen: Sequence[int],
    *,
    micro: int,
    device: Any,
    bfloat16: bool,
    taught: TeacherTargets | None = None,
) -> float:
    """Add up the gradient of the mean loss over all tokens of a batch; return that loss.

    Args:
        torch: the module.
        network: the causal language model that learns.
        rows: all rows of the training, as token ids.
        chosen: which of them are the batch.
        micro: rows in memory at a time, >= 1.
        device: where the network is.
        bfloat16: multiply in bfloat16.
        taught: what a teacher makes of the rows; None for the text alone.

    Returns:
        Nats per token.
    """
    predicted = sum(len(rows[index]) - 1 for index in chosen)
    loss = 0.0
    for first in range(0, len(chosen), micro):
        part = chosen[first : first + micro]
        tokens, attention = padded([rows[index] for index in part])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
            logits = network(
                input_ids=tokens.to(device), attention_mask=attention.to(device), use_cache=False
            ).logits
        held = attention[:, 1:].bool()
        if taught is None:
            targets = tokens[:, 1:].masked_fill(~held, _IGNORED)
            summed = torch.nn.functional.cross_entropy(
                logits[:, :-1].float().flatten(0, 1),
                targets.to(device).flatten(),
                ignore_index=_IGNORED,
                reduction="sum",
            )
        else:
            summed = taught.losses(
                logits[:, :-1][held.to(device)].float(),
                tokens[:, 1:][held].to(device),
                part,
                [len(rows[index]) - 1 for index in part],
            ).sum()
        (summed / predicted).backward()
        loss += float(summed.detach()) / predicted
    return loss
