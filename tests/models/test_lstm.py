"""The on-device LSTM as a Transformers model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flower_privsyn.models.lstm import LSTMConfig, LSTMForCausalLM


def _model(**changes) -> LSTMForCausalLM:
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "embedding_size": 12, "hidden_size": 20, "pad_token_id": 0} | changes
    return LSTMForCausalLM(LSTMConfig(**shape)).eval()


@pytest.mark.parametrize("num_layers", [1, 2])
@torch.no_grad()
def test_padding_on_either_side_changes_no_logit(num_layers: int):
    model = _model(num_layers=num_layers)
    texts = [torch.tensor([5, 6, 7, 8, 9]), torch.tensor([10, 11])]
    left, right = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 6, dtype=torch.long)
    for row, text in enumerate(texts):
        left[row, 6 - len(text) :] = text
        right[row, : len(text)] = text
    from_left = model(input_ids=left, attention_mask=(left > 0).long()).logits
    from_right = model(input_ids=right, attention_mask=(right > 0).long()).logits
    for row, text in enumerate(texts):
        alone = model(input_ids=text[None]).logits[0]
        torch.testing.assert_close(from_left[row, 6 - len(text) :], alone)
        torch.testing.assert_close(from_right[row, : len(text)], alone)
    # Without the mask the padding is read as text.
    read = model(input_ids=left).logits[1, 4:]
    assert not torch.allclose(read, model(input_ids=texts[1][None]).logits[0], atol=1e-3)


def test_a_folder_loads_by_its_path_alone(tmp_path: Path):
    """In a fresh process `resolve_model` is what makes Transformers know the architecture."""
    _model().save_pretrained(tmp_path)
    code = (
        "import sys; from flower_privsyn.models import resolve_model; assert 'torch' not in "
        "sys.modules; path = resolve_model(sys.argv[1]); from transformers import "
        "AutoModelForCausalLM; print(type(AutoModelForCausalLM.from_pretrained(path)).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "LSTMForCausalLM", done.stderr[-500:]
