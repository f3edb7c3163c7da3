"""Attention by plain products, where PyTorch's fused one is slow: half precision on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

#: What Transformers calls the products of this file.
_PRODUCTS: Final = "privsyn-products"

#: Models whose own products are these; others may have sinks, caps or sparse masks of their own.
_SAME: Final = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "granite", "olmo2", "smollm3")


def attend_by_products(model: Any) -> None:
    """Have a model that computes in half precision on a CPU attend by two plain products.

    PyTorch's fused attention takes 4 times as long there, for one query at a time and in training
    on rows of up to 256 tokens; the products hold as many numbers as a row has pairs of tokens.
    Heads that share keys are rows of one product: Transformers' own products copy all keys and
    values for each of them, which in writing took more time than all else.
    """
    if model.device.type != "cpu" or model.config._attn_implementation != "sdpa":
        return
    config = model.config
    if config.model_type not in _SAME or config.num_key_value_heads == config.num_attention_heads:
        model.set_attn_implementation("eager")
        return
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register(_PRODUCTS, _products)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_PRODUCTS, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    model.set_attn_implementation(_PRODUCTS)


def _products(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `eager_attention_forward` of a model.

    Args:
        module: the layer.
        query: (rows, heads, t, d).
        key: (rows, groups, s, d), one for heads / groups heads.
        value: (rows, groups, s, e).
        attention_mask: (rows, 1 or heads, t, at least s), added to the products; None for none.
        scaling: of the products.
        dropout: of the weights, in training.

    Returns:
        (rows, t, heads, e), and the weights, (rows, heads, t, s).
    """
    import torch

    rows, heads, length = query.shape[:3]
    groups, seen = key.shape[1], key.shape[2]
    together = query.reshape(rows, groups, heads // groups * length, -1)
    weights = torch.matmul(together, key.transpose(2, 3)) * scaling
    weights = weights.view(rows, heads, length, seen)
    if attention_mask is not None:
        weights = weights + attention_mask[..., :seen]
    weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = torch.dropout(weights, dropout, module.training)
    found = torch.matmul(weights.view(rows, groups, -1, seen), value)
    found = found.view(rows, heads, length, -1).transpose(1, 2).contiguous()
    return found, weights
