"""The on-device models of the paper: sizes as printed, tokens of public text, and a run on them."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_privsyn.models.pretrained import load_pretrained

SCRIPT = Path(__file__).parents[2] / "baselines" / "public-mid-training" / "on_device.py"


Written = Callable[..., str]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Written:
    """Calls the script, and gives what it prints."""

    def call(architecture: str, output: Path, *words: str) -> str:
        given = ["--architecture", architecture, "--output", str(output), *words]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *given])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return call


def test_the_lstm_has_the_size_of_reddi_et_al() -> None:
    """4,050,748 in their table 9 with 10,004 tokens; PyTorch has a second bias in its LSTM."""

    class Tokens:
        pad_token_id, bos_token_id, eos_token_id = 0, 2, 3

        def __len__(self) -> int:
            return 10_004

    from flower_privsyn.models.lstm import LSTMForCausalLM

    network = LSTMForCausalLM(runpy.run_path(str(SCRIPT))["shape"]("lstm", Tokens()))
    assert network.num_parameters() == 4_050_748 + 4 * 670


def test_the_transformer_has_the_printed_widths_and_a_seed_its_weights(
    tmp_path: Path, written: Written
) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        written("transformer", tmp_path / name, "--seed", seed)
    a, b, c = ((tmp_path / n / "model.safetensors").read_bytes() for n in "abc")
    assert a == b != c
    network, tokenizer = load_pretrained(
        tmp_path / "a", kind="causal", dtype="float32", device="cpu"
    )
    assert len(tokenizer) == 8192
    (block,) = network.transformer.h
    assert tuple(block.mlp.c_fc.weight.shape) == (96, 670)
    assert tuple(block.attn.c_attn.weight.shape) == (96, 3 * 96)
    assert tuple(network.transformer.wpe.weight.shape) == (21, 96)
    assert network.lm_head.weight is not network.transformer.wte.weight


def test_every_text_can_be_written_in_the_tokens_of_public_text(
    tmp_path: Path, texts: list[str], written: Written
) -> None:
    public = tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    model = tmp_path / "model"
    assert "304 tokens" in written("lstm", model, "--vocabulary", "300", "--text", str(public))
    _, tokenizer = load_pretrained(model, kind="causal", dtype="float32", device="cpu")
    text = "Something else: \u4f60\u597d, <3\n"
    row = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(row) == text  # every text can be written
    assert tokenizer.unk_token_id not in row
