"""Heads that share keys are rows of one product, and a model computes what it did."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from flower_privsyn.models.attention import _PRODUCTS, _SAME, attend_by_products

SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "pad_token_id": 0,
}


def model_of(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL | changes)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.set_attn_implementation("sdpa")
    return model


@pytest.mark.parametrize("kind", _SAME)
def test_a_model_computes_the_same(kind: str, tmp_path: Path) -> None:
    """In prompts and step by step, beneath padding and windows, and in training."""
    model = model_of(kind)
    own = copy.deepcopy(model)
    own.set_attn_implementation("eager")
    attend_by_products(model)
    assert model.config._attn_implementation == _PRODUCTS
    ids = torch.randint(3, 99, (3, 20), generator=torch.Generator().manual_seed(1))
    seen = torch.ones_like(ids)
    seen[0, :5] = 0
    found, expected = (one(input_ids=ids, attention_mask=seen, labels=ids) for one in (model, own))
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    for output in (found, expected):
        output.loss.backward()
    for (name, got), wanted in zip(model.named_parameters(), own.parameters(), strict=True):
        assert torch.allclose(got.grad, wanted.grad, atol=1e-4), name
    written = [
        one.generate(
            input_ids=ids, attention_mask=seen, max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        for one in (model, own)
    ]
    assert torch.equal(*written)
    # Whoever loads what was trained knows nothing of it.
    model.save_pretrained(tmp_path)
    assert _PRODUCTS not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize(
    "model",
    [("llama", {"num_key_value_heads": 4}), ("phi", {}), ("opt", {"word_embed_proj_dim": 64})],
)
def test_others_keep_their_own(model: tuple[str, dict[str, Any]]) -> None:
    """Heads with a key each, and models that are not known to compute the same."""
    made = model_of(model[0], **model[1])
    attend_by_products(made)
    assert made.config._attn_implementation == "eager"
