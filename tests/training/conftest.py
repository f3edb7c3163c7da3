"""A tiny random Llama with the bundled tokenizer, and hand-made preferences."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_privsyn.models import resolve_model
from tests.support.preferences import pairs_of_topics, train


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 64, random weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("privsyn-lm"))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=96,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.1,
        tie_word_embeddings=True,
        attention_dropout=0.5,  # must not reach the loss
    )
    tokenizer.add_special_tokens({"pad_token": "<none>"})  # after the model, so without a row
    folder = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def first(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of a first round."""
    output = tmp_path_factory.mktemp("first") / "adapter"
    train(tiny, pairs_of_topics(8, first=500), output)
    return output
