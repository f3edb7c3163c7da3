"""Attention to shared keys without copies is the model's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

from flower_privsyn.generation import SamplingParameters, attention
from flower_privsyn.generation.transformers_backend import TransformersGenerator
from flower_privsyn.models import threads
from tests.support.models import byte_level, save

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}


def model(kind: str, *, shared: int = 2) -> Any:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": shared, "initializer_range": 0.3}
    if kind == "gemma":
        config = Gemma3TextConfig(
            vocab_size=600, **SIZES, **heads, sliding_window=4, query_pre_attn_scalar=8
        )
        return Gemma3ForCausalLM(config).eval()
    config = LlamaConfig(vocab_size=600, **SIZES, **heads, pad_token_id=0, eos_token_id=2)
    return LlamaForCausalLM(config).eval()


def test_which_models_it_suits(monkeypatch: pytest.MonkeyPatch):
    for kind in ("llama", "gemma"):
        network = model(kind)
        before = network.config._attn_implementation
        assert attention.suits(network)
        assert network.config._attn_implementation == before
        assert not attention.suits(model(kind, shared=4))  # nothing would be copied
    # A model whose attention is something else keeps its own.
    monkeypatch.setattr(attention, "attend", lambda *args, **options: (0 * args[1], None))
    assert not attention.suits(model("llama"))


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_a_large_model_writes_the_same_with_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = save(tmp_path / kind, model(kind), byte_level(template=False))
    monkeypatch.setattr(threads, "SMALL", 0)
    sampling = SamplingParameters(seed=0, max_new_tokens=6, temperature=0)
    prompts = ["The river", "A doctor waits under the old street, and", "Music"]
    generator = TransformersGenerator(folder, dtype="bfloat16")
    assert generator._step_attention == attention.SINGLE_QUERIES
    found = generator.generate(prompts, num_samples=2, sampling=sampling)
    generator._step_attention = "eager"
    expected = generator.generate(prompts, num_samples=2, sampling=sampling)
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    assert same >= 2  # in half precision a tie may fall otherwise
