"""A causal language model in two parts: what goes into its output layer, and that layer.

The output layer is most of a small model's work, and its logits are the largest arrays there are.
Where it comes last, it can be given the positions that matter, or a block of them at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch

#: Logits far beyond what any bound on them would leave as they are.
_WIDE: Final = 1e4
#: Where a model keeps the answer.
_LAST: Final = "_privsyn_head_is_last"


def base_model(model: Any) -> Any:
    """The model itself, without a wrapper around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextlib.contextmanager
def passed_over(head: Any) -> Iterator[None]:
    """Let a model give what goes into its output layer in place of logits."""
    with _in_its_place(head, lambda states: states):
        yield


def is_last(model: Any) -> bool:
    """Whether logits are what the output layer gives, with nothing done to them afterwards.

    It is asked with logits of ours in place of the layer's, small and large ones: what comes out
    must be what went in, whatever the weights are.
    """
    base = base_model(model)
    known: bool | None = getattr(base, _LAST, None)
    if known is None:
        known = _comes_last(base)
        setattr(base, _LAST, known)
    return known


def _comes_last(base: Any) -> bool:
    head = base.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if weight is None or weight.ndim != 2:
        return False
    tokens = torch.arange(1, 5, device=weight.device)[None]
    logits = torch.linspace(-_WIDE, _WIDE, weight.shape[0], device=weight.device).to(weight.dtype)
    taken: list[torch.Size] = []

    def instead(states: torch.Tensor) -> torch.Tensor:
        taken.append(states.shape)
        return logits.expand(*states.shape[:-1], -1)

    with torch.no_grad(), _in_its_place(head, instead):
        found = base(input_ids=tokens, use_cache=False).logits
    expected = logits.expand(*tokens.shape, -1)
    return taken == [(*tokens.shape, weight.shape[1])] and torch.equal(
        found.to(weight.dtype), expected
    )


@contextlib.contextmanager
def _in_its_place(head: Any, function: Any) -> Iterator[None]:
    head.forward = function
    try:
        yield
    finally:
        del head.forward
