"""Log-probabilities of responses, with the logits of a large vocabulary only in blocks.

Eight pairs of 64 response tokens have 1,024 rows of logits: of 8,192 tokens 34 MB, of 262,144 more
than a gigabyte, and several times that with gradients. Above a bound the last hidden states are
kept instead, and a block of them after the other goes through the output matrix, once forwards and
once more in the backward pass. The numbers are the same up to rounding.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from flower_privsyn.training.output_layer import base_model, is_last, passed_over

_IGNORED: Final = -100

#: Logits of a batch up to which all of them are computed at once, and those of a block.
_WHOLE: Final = 2**26
_BLOCK: Final = 2**26


def sequence_log_probabilities(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Sum the log-probabilities of the response tokens of every row.

    Args:
        model: A causal language model, or a PEFT model around one.
        batch: What `flower_privsyn.training.trainers.Collator` makes, on the model's device.

    Returns:
        (b,) float32.
    """
    mask = batch["completion_mask"].bool()  # (b, t)
    width = int(mask.any(0).sum())  # the last columns, responses being lined up
    names = ("input_ids", "attention_mask", "position_ids")
    inputs: dict[str, Any] = {name: batch[name] for name in names if name in batch}
    if accepts(model, "logits_to_keep"):
        # The output matrix is most of a small model, and prompts are most of the tokens. As
        # indices: after a slice PyTorch would copy the whole matrix for every row of the batch.
        length = mask.shape[1]
        inputs["logits_to_keep"] = torch.arange(length - width - 1, length, device=mask.device)
    targets = batch["input_ids"].masked_fill(~mask, _IGNORED)[:, -width:]  # (b, r)
    head = base_model(model).get_output_embeddings()
    if head is not None and targets.numel() * head.weight.shape[0] > _WHOLE and is_last(model):
        with passed_over(head):
            hidden = model(**inputs, use_cache=False).logits[:, -(width + 1) : -1]  # (b, r, d)
        return -_losses_in_blocks(head, hidden, targets).sum(1)
    logits = model(**inputs, use_cache=False).logits[:, -(width + 1) : -1]  # (b, r, v)
    losses = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="none"
    )  # (b * r,)
    return -losses.view(targets.shape).sum(1)


def _losses_in_blocks(head: Any, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of every target, 0 where there is none: (b, r) float32.

    Args:
        head: The output layer.
        hidden: (b, r, d) what goes into it.
        targets: (b, r) token numbers.
    """

    def block(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = head(states.to(head.weight.dtype))  # a wrapper may have made them float32
        return torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="none")

    held = targets != _IGNORED
    states, wanted = hidden[held], targets[held]  # (k, d), (k,)
    size = max(1, _BLOCK // int(head.weight.shape[0]))
    found = [
        # Without keeping its logits: they are computed again for the gradient.
        checkpoint(block, states[first : first + size], wanted[first : first + size],
                   use_reentrant=False)
        if states.requires_grad
        else block(states[first : first + size], wanted[first : first + size])
        for first in range(0, len(states), size)
    ]  # fmt: skip
    losses = hidden.new_zeros(targets.shape, dtype=torch.float32)
    return losses.masked_scatter(held, torch.cat(found)) if found else losses


def accepts(model: Any, name: str) -> bool:
    """Tell whether the model itself, not a wrapper around it, takes this argument."""
    return name in inspect.signature(type(base_model(model)).forward).parameters
