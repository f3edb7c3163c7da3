"""Log-probabilities in blocks are those of all logits at once, and so are their gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flower_privsyn.training import log_probabilities
from flower_privsyn.training.log_probabilities import sequence_log_probabilities
from flower_privsyn.training.output_layer import is_last
from flower_privsyn.training.trainers import Collator, wrap
from tests.support.preferences import pairs_of_topics, quick, train


def _batch() -> dict[str, torch.Tensor]:
    rows = [
        {"prompt": [5, 6, 7, 8], "chosen": [20, 21, 22, 23, 24], "rejected": [30, 31]},
        {"prompt": [9], "chosen": [40], "rejected": [41, 42, 43]},
    ]
    return Collator(padding=0, with_positions=True, chosen_only=False)(rows)


def _both(
    model: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """The log-probabilities and the gradients of what is trained: whole, then in blocks."""
    found = []
    for whole in (2**40, 0):
        monkeypatch.setattr(log_probabilities, "_WHOLE", whole)
        monkeypatch.setattr(log_probabilities, "_BLOCK", block)
        model.zero_grad()
        sums = sequence_log_probabilities(model, _batch())
        (sums * torch.tensor([1.0, -2.0, 0.5, 3.0])).sum().backward()
        gradients = {
            name: weight.grad.clone()
            for name, weight in model.named_parameters()
            if weight.grad is not None
        }
        found.append((sums.detach(), gradients))
    return found


@pytest.mark.parametrize("positions", [1, 3, 100])
def test_blocks_give_the_same(tiny: Path, positions: int, monkeypatch: pytest.MonkeyPatch):
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    base.requires_grad_(False)
    model = wrap(base, quick(), seed=3)
    vocabulary = base.config.vocab_size
    seen: list[int] = []
    with torch.no_grad():  # an adapter with an effect
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    base.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape[:-1].numel() * output.shape[-1])
    )
    (whole, expected), (blocks, found) = _both(model, positions * vocabulary, monkeypatch)
    assert torch.allclose(blocks, whole, rtol=1e-5, atol=1e-5)
    assert found.keys() == expected.keys()
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in expected.values())
    for name, gradient in expected.items():
        difference = float((found[name] - gradient).abs().max())
        assert difference <= 1e-4 * float(gradient.abs().max()), name
    # Eleven response tokens, forwards and again in the backward pass, at most so many at a time.
    inside = [count for count in seen[1:] if count % vocabulary == 0]
    assert max(inside[1:], default=0) <= max(positions, 11) * vocabulary
    with torch.no_grad():
        assert torch.allclose(sequence_log_probabilities(model, _batch()), whole, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_training_in_blocks_ends_at_the_same_weights(
    tiny: Path, tmp_path: Path, precision: Any, monkeypatch: pytest.MonkeyPatch
):
    pairs = pairs_of_topics(8)
    losses = []
    for whole in (2**40, 0):
        monkeypatch.setattr(log_probabilities, "_WHOLE", whole)
        monkeypatch.setattr(log_probabilities, "_BLOCK", 16 * 8192)
        report = train(tiny, pairs, tmp_path / str(whole), settings=quick(precision=precision))
        losses.append(report.losses)
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4 if precision == "float32" else 0.05)


def test_a_model_that_bounds_its_logits_is_not_cut_short(monkeypatch: pytest.MonkeyPatch):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "initializer_range": 0.5,
    }
    for cap, apart in ((None, True), (1.0, False)):
        config = Gemma3TextConfig(**sizes, final_logit_softcapping=cap)
        model = Gemma3ForCausalLM(config).eval()
        assert is_last(model) is apart
        (whole, expected), (blocks, found) = _both(model, 4 * 64, monkeypatch)
        assert torch.allclose(blocks, whole, rtol=1e-4, atol=1e-4)
        for name, gradient in expected.items():
            assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-4), name
    # A bound that the weights as they are never reach is one all the same.
    config = Gemma3TextConfig(**sizes | {"initializer_range": 1e-3}, final_logit_softcapping=30.0)
    assert not is_last(Gemma3ForCausalLM(config).eval())
