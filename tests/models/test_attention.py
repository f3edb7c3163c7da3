"""Heads that share keys are rows of one product, and a model computes what it did."""

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from flower_privsyn.models.attention import _PRODUCTS, _products, attend_by_products

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


def test_a_cap_of_the_products() -> None:
    random = torch.Generator().manual_seed(2)
    query = torch.randn(2, 4, 3, 8, generator=random)
    key, value = torch.randn(2, 2, 2, 5, 8, generator=random)
    found, weights = _products(torch.nn.Module(), query, key, value, None, scaling=0.5, softcap=2.0)
    keys, values = (one.repeat_interleave(2, dim=1) for one in (key, value))
    capped = torch.tanh(query @ keys.mT * 0.5 / 2.0) * 2.0
    assert torch.allclose(weights, capped.softmax(-1), atol=1e-6)
    assert torch.allclose(found, (capped.softmax(-1) @ values).transpose(1, 2), atol=1e-6)


def own_with_sinks(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, sinks: Any
) -> None:
    """Products that take more."""


def own_without_scale(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any
) -> None:
    """As GPT-2's of Transformers 5.0, which scales inside."""


@pytest.mark.parametrize("own", [own_with_sinks, own_without_scale, None, "indexer", "a key each"])
def test_what_attends_by_more_keeps_its_own(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama", **({"num_key_value_heads": 4} if own == "a key each" else {}))
    if own == "indexer":
        model.model.layers[0].self_attn.indexer = torch.nn.Identity()
    elif not isinstance(own, str):
        module = sys.modules[type(model).__module__]
        monkeypatch.setattr(module, "eager_attention_forward", own)
    attend_by_products(model)
    assert model.config._attn_implementation == "eager"
