"""Heads that share keys are rows of one product, and a model computes what it did."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from flower_privsyn.models.attention import _PRODUCTS, attend_by_products

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


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL)).eval()
    model.set_attn_implementation("sdpa")
    return model


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma3_text"])
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


def test_what_is_computed_by_other_means_stays() -> None:
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("bloom", vocab_size=101, hidden_size=64, n_layer=1, n_head=4)
    )
    before = model.config._attn_implementation
    attend_by_products(model)
    assert model.config._attn_implementation in (before, "eager")
    assert model(input_ids=torch.tensor([[3, 4]])).logits.isfinite().all()
