"""Tiny causal models for tests of training: the ones of generation, and the on-device LSTM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.generation.conftest import _byte_level, _save, gpt2, llama, offline, one_thread, texts

__all__ = ["gpt2", "llama", "lstm", "offline", "one_thread", "texts"]


@pytest.fixture(scope="session")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The LSTM's architecture with 12 units and random weights."""
    import torch

    from flower_privsyn.models.lstm import LSTMConfig, LSTMForCausalLM

    torch.manual_seed(5)
    tokenizer = _byte_level(template=False)
    config = LSTMConfig(vocab_size=len(tokenizer), embedding_size=8, hidden_size=12)
    return _save(tmp_path_factory.mktemp("lstm"), LSTMForCausalLM(config), tokenizer)
