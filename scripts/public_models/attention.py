"""Causal attention without a mask, for packed rows on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "packed-causal"


def use_packed_attention(model: Any) -> None:
    """Let a decoder attend through `scaled_dot_product_attention(..., is_causal=True)`.

    Transformers 5.23 builds an explicit causal mask whenever it runs under `torch.compile` before
    PyTorch 2.14 (it cannot tell compiling from exporting there), and with a mask PyTorch leaves
    the flash kernel. Packed rows have no padding, so none is needed. For training only: a row with
    padding would be read wrongly.

    Args:
        model: a Llama-style decoder whose query and key heads are equal in number.
    """
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)
    model.set_attn_implementation(NAME)


def _no_mask(*args: Any, **kwargs: Any) -> None:  # noqa: ARG001
    return None


def _attend(
    module: torch.nn.Module,  # noqa: ARG001
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,  # noqa: ARG001
    scaling: float | None = None,
    **kwargs: Any,  # noqa: ARG001
) -> tuple[torch.Tensor, None]:
    """Attend as Transformers wants it: (rows, heads, t, d) in, (rows, t, heads, d) out."""
    out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return out.transpose(1, 2).contiguous(), None
