"""How many samples a device takes side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flower_privsyn.generation.transformers_backend import samples_that_fit

GIB = 2.0**30

LLAMA_8B = SimpleNamespace(
    num_attention_heads=32,
    num_key_value_heads=8,
    hidden_size=4096,
    num_hidden_layers=32,
    vocab_size=128_256,
)
GEMMA_270M = SimpleNamespace(
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    hidden_size=640,
    num_hidden_layers=18,
    vocab_size=262_144,
)
GPT2 = SimpleNamespace(
    num_attention_heads=12, hidden_size=768, num_hidden_layers=12, vocab_size=50_257
)


@pytest.mark.parametrize(
    ("config", "memory", "expected"),
    [
        # 134 MB of keys and values and 3 MB of one drawing each.
        (LLAMA_8B, 20 * GIB, 128),
        (LLAMA_8B, 0.1 * GIB, 1),
        # Half of it is the drawing from a vocabulary of 262,144.
        (GEMMA_270M, 20 * GIB, 512),
        # 38 MB, with a head's width of the hidden size's, and as many heads of keys.
        (GPT2, 4 * GIB, 64),
    ],
)
def test_as_many_as_memory_holds(config: Any, memory: float, expected: int) -> None:
    found = samples_that_fit(config, memory, itemsize=2)
    assert found == expected
