"""Attention of one query at a time to keys that several heads share, without copying the keys.

Transformers' plain attention writes the keys and values out once for every head that shares them,
in every layer and step: for a model with one shared head and four queries four times what it would
have to read. PyTorch's fused attention reads them once, but takes 4 times as long as two matrix
products for a single query in bfloat16 on a CPU.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

SINGLE_QUERIES: Final = "privsyn-single-queries"
"""The name under which Transformers knows it, once `register` has been called."""


def register() -> None:
    """Make it known to Transformers, with the mask of plain attention."""
    utils: Any = importlib.import_module("transformers.modeling_utils")
    masks: Any = importlib.import_module("transformers.masking_utils")
    utils.ALL_ATTENTION_FUNCTIONS.register(SINGLE_QUERIES, attend)
    masks.ALL_MASK_ATTENTION_FUNCTIONS.register(SINGLE_QUERIES, masks.eager_mask)


@contextlib.contextmanager
def for_growing_texts(device: torch.device) -> Iterator[None]:
    """PyTorch's attention without cuDNN's kernels, which are planned anew for every length.

    A text that grows by a token has a length of its own in every step: on an H100 planning took
    most of each, whatever the batch. Elsewhere than on a GPU this does nothing.

    Args:
        device: Where the model is.
    """
    if device.type != "cuda":
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def suits(model: Any) -> bool:
    """Register, and tell whether a model attends by it as it does by its own plain attention.

    Not where every head has keys of its own, where nothing would be copied, nor where attention is
    more than a mask, a scale and a bound.

    Args:
        model: a causal language model that attends by Transformers' functions.
    """
    import torch
    from transformers import DynamicCache

    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 0)
    if heads <= (getattr(config, "num_key_value_heads", None) or heads):
        return False
    register()
    before = model.config._attn_implementation
    tokens = torch.arange(3, 9, device=model.device)[None]
    found = []
    try:
        with torch.inference_mode():
            for name in ("eager", SINGLE_QUERIES):
                model.set_attn_implementation("eager")
                cache = DynamicCache(config=model.config)
                model(input_ids=tokens[:, :-1], past_key_values=cache, use_cache=True)
                model.set_attn_implementation(name)
                step = model(input_ids=tokens[:, -1:], past_key_values=cache, use_cache=True)
                found.append(step.logits.float())
    except (KeyError, TypeError, ValueError, RuntimeError):
        return False
    finally:
        model.set_attn_implementation(before)
    plain, grouped = found
    bound = 0.05 * float(plain.abs().max()) + 1e-3
    return bool((plain - grouped).abs().max() <= bound)


def attend(
    module: Any,  # noqa: ARG001  # as Transformers calls it
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as Transformers' plain attention does.

    Args:
        module: the layer; a caller's own, not used.
        query: (b, heads, 1, d).
        key: (b, shared, t, d), `heads` a multiple of `shared`.
        value: (b, shared, t, e).
        attention_mask: added to what comes before the softmax, (b, 1, 1, t); None for nothing.
        scaling: of the products; None for one over the root of d.
        softcap: bounds them by a hyperbolic tangent; None for no bound.
        s_aux: not supported: what some models add to the softmax.
        position_bias: not supported: what some models add to the scores.

    Returns:
        (b, 1, heads, e), and None in place of the weights.

    Raises:
        ValueError: There is more to this model's attention.
    """
    import torch

    if s_aux is not None or position_bias is not None:
        raise ValueError("this attention is more than a mask, a scale and a bound")
    rows, heads, single, width = query.shape
    shared = key.shape[1]
    scaling = width**-0.5 if scaling is None else scaling
    grouped = query.reshape(rows, shared, heads // shared * single, width)
    scores = (grouped * scaling) @ key.transpose(2, 3)  # (b, shared, heads / shared, t)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    attended = weights @ value  # (b, shared, heads / shared, e)
    return attended.reshape(rows, single, heads, -1), None
