"""Loading models: what cannot be loaded ends in one sentence, fast."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from flower_privsyn.errors import ModelError
from flower_privsyn.models.adapters import AdapterSwitch
from flower_privsyn.models.pretrained import choose_dtype, load_pretrained, logits_at


def _load(name: str | Path, kind: str = "causal"):
    return load_pretrained(name, kind=kind, dtype="float32", device="cpu")


def test_a_folder_is_loaded_for_evaluation(llama: Path):
    model, tokenizer = _load(llama)
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    assert model.dtype == torch.float32
    assert tokenizer("a")["input_ids"]


@pytest.mark.parametrize("name", ["llama", "gpt2", "privsyn-lstm", "privsyn-mlm", "bart", "t5"])
@torch.no_grad()
def test_logits_of_some_positions(name: str, request: pytest.FixtureRequest):
    bundled = name.startswith("privsyn")
    kind = "masked" if name == "privsyn-mlm" else "causal or encoder-decoder"
    model, _ = _load(name if bundled else request.getfixturevalue(name), kind=kind)
    generator = torch.Generator().manual_seed(1)
    inputs = {"input_ids": torch.randint(5, 99, (3, 12), generator=generator)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"].flip(1)
    places = torch.rand(3, 12, generator=generator) < 0.4
    expected = model(**inputs).logits
    assert torch.allclose(logits_at(model, places, **inputs), expected[places], atol=1e-5)
    assert model(**inputs).logits.shape == expected.shape


def test_threads_read_other_positions_of_one_model(llama: Path):
    model, _ = _load(llama)
    ids = torch.randint(5, 99, (3, 12), generator=torch.Generator().manual_seed(1))
    together = threading.Barrier(2)

    def meet(*_: object) -> None:
        together.wait(60)

    # Both are in the model before either comes to its output layer.
    model.get_input_embeddings().register_forward_pre_hook(meet)

    def read(count: int) -> torch.Tensor:
        places = torch.zeros(3, 12, dtype=torch.bool)
        places[:, :count] = True
        with torch.no_grad():
            return logits_at(model, places, input_ids=ids)

    with ThreadPoolExecutor(2) as pool:
        few, many = pool.map(read, (2, 5))
    assert (few.shape[0], many.shape[0]) == (6, 15)
    assert torch.allclose(few.view(3, 2, -1), many.view(3, 5, -1)[:, :2], atol=1e-5)


def test_a_model_in_the_local_cache_needs_no_network(
    llama: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    import huggingface_hub

    revision = "0" * 40
    folder = tmp_path / "models--owner--name"
    shutil.copytree(llama, folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    # Nothing listens here.
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    model, _ = _load("owner/name")
    assert model.config.model_type == "llama"


def test_a_broken_folder(llama: Path, tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        _load(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "no-such-type"}))
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        _load(folder)


@pytest.mark.parametrize(
    ("architecture", "settings", "kind", "refused"),
    [
        ("BertForMaskedLM", {}, "causal", "a masked language model"),
        ("BertForMaskedLM", {"is_decoder": True}, "causal", ""),
        ("LlamaForCausalLM", {}, "masked", "a causal language model"),
        ("XLMWithLMHeadModel", {}, "masked", ""),  # one class for both
        ("BartForConditionalGeneration", {}, "causal or encoder-decoder", ""),
        (None, {}, "masked", ""),
    ],
)
def test_what_a_model_is_for_is_read_from_its_configuration(
    architecture: str | None, settings: dict, kind: str, refused: str, tmp_path: Path
):
    named = {"model_type": "bert"} | ({"architectures": [architecture]} if architecture else {})
    (tmp_path / "config.json").write_text(json.dumps(named | settings))
    with pytest.raises(ModelError) as caught:  # it has no weights
        _load(tmp_path, kind)
    assert str(caught.value).endswith(f"it is {refused}") == bool(refused)


def test_auto_precision_follows_the_cpu(monkeypatch: pytest.MonkeyPatch):
    for capabilities, expected in [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True, "avx2": True}, torch.bfloat16),
        ({"avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({}, torch.float32),
    ]:
        monkeypatch.setattr(
            torch.cpu, "get_capabilities", lambda found=capabilities: found, raising=False
        )
        assert choose_dtype("auto", torch.device("cpu")) == expected


def test_a_folder_that_names_another_is_refused(llama: Path, tmp_path: Path) -> None:
    """Of a run that somebody handed over it would be opened, wherever that is."""
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    named = {"peft_type": "LORA", "base_model_name_or_path": str(llama)}
    (folder / "adapter_config.json").write_text(json.dumps(named))
    with pytest.raises(ModelError, match="it holds an adapter, which names another model"):
        load_pretrained(folder, kind="causal", dtype="float32", device="cpu")


def test_an_adapter_of_another_model_is_refused(lstm: Path, adapters: tuple[Path, Path]) -> None:
    model, _ = _load(lstm)
    with pytest.raises(ModelError, match="'lstm'"):
        AdapterSwitch(model, "lstm").activate(adapters[0])
