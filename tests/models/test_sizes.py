"""A folder may hold weights and tables; code, objects and absurd sizes are refused."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flower_privsyn.errors import ModelError
from flower_privsyn.generation import load_generator
from flower_privsyn.models import BUNDLED_FOLDER, BUNDLED_MODELS
from flower_privsyn.models.sizes import refuse_absurd_sizes


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


def _set(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_models_as_they_are(name: str):
    refuse_absurd_sizes(BUNDLED_FOLDER / name)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**8),
        ("vocab_size", 10**7),
        ("hidden_size", 10**12),
        ("intermediate_size", 10**9),
        ("num_attention_heads", 10**15),
        ("num_key_value_heads", -1),
        ("text_config", {"vocab_size": 10**11}),
        ("decoder_layers", 10**8),
        ("encoder_layers", 10**8),
        ("depth", 10**8),
        ("decoder_ffn_dim", 10**9),
        ("d_inner", 10**9),
        ("type_vocab_size", 10**9),
        ("max_position_embeddings", 10**9),
        ("attention_types", [[["global", "local"], 10**8]]),
        ("intermediate_size", [256, 10**9]),
        ("sub_configs", [{"n_layer": 10**8}]),
    ],
)
def test_absurd_sizes(folder: Path, key: str, value: Any):
    _set(folder, **{key: value})
    with pytest.raises(ModelError, match=r"weights of [\d,]+ bytes cannot have") as caught:
        load_generator(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("decoder_layers", 1e8),
        ("num_hidden_layers", "100000000"),
        ("vocab_size", float("nan")),
        ("d_inner", float("inf")),
        ("intermediate_size", [256, 1e9]),
    ],
)
def test_sizes_that_are_no_whole_numbers(folder: Path, key: str, value: Any):
    _set(folder, **{key: value})
    with pytest.raises(ModelError, match=rf"says {key} = .*(cannot have|is no number)"):
        refuse_absurd_sizes(folder)


def test_honest_values_of_such_keys(folder: Path):
    _set(
        folder,
        attention_layers=["global", "local"],
        attention_types=[[["global", "local"], 12]],
        mlp_only_layers=[],
        cross_attention_layers=[3, 8],
        vision_feature_layer=-2,
        norm_layer="rmsnorm",
        scale_depth=1.4,  # MiniCPM's
        tie_layers=True,
        n_inner=None,
        max_position_embeddings=131_072,  # of rotations, which have no table
    )
    refuse_absurd_sizes(folder)


def test_another_family(tmp_path: Path):
    """BART has its layers under names of its own; built by them, it takes the whole machine."""
    from transformers import BartConfig

    small = {"vocab_size": 600, "d_model": 16, "max_position_embeddings": 64}
    BartConfig(**small, decoder_layers=10**8).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(2**20))
    with pytest.raises(ModelError, match="decoder_layers = 100,000,000"):
        load_generator(str(tmp_path))


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000])
def test_no_configuration(folder: Path, content: str):
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError, match=r"config\.json (is not JSON|must hold one JSON object)"):
        load_generator(str(folder))


def test_a_configuration_without_an_end(folder: Path):
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ModelError, match="longer than any"):
        refuse_absurd_sizes(folder)


@pytest.mark.parametrize("kept", [7, 1000, 100_000])
def test_weights_that_were_cut_off(folder: Path, kept: int):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelError) as caught:
        load_generator(str(folder))
    assert "\n" not in str(caught.value)


def test_weights_whose_header_has_no_end(folder: Path):
    weights = folder / "model.safetensors"
    weights.write_bytes((2**60).to_bytes(8, "little") + weights.read_bytes()[8:])
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        load_generator(str(folder))


def test_no_code_of_a_folder_is_run(folder: Path, tmp_path: Path):
    """Neither where Transformers knows the kind of model, nor where only the folder would."""
    proof = tmp_path / "proof"
    code = f"open({str(proof)!r}, 'w').close()\n"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (folder / f"{name}.py").write_text(code)
    own = {
        "AutoConfig": "configuration_evil.EvilConfig",
        "AutoModelForCausalLM": "modeling_evil.EvilModel",
        "AutoTokenizer": ["tokenization_evil.Evil", "tokenization_evil.Evil"],
    }
    _set(folder, auto_map=own)
    tokenizer = folder / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"auto_map": own}))
    assert load_generator(str(folder)).name == str(folder)
    _set(folder, model_type="evil")
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        load_generator(str(folder))
    assert not proof.exists()
    assert not any("evil" in name for name in sys.modules)


class _Evil:
    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> Any:
        return (Path.touch, (self._proof,))


def test_no_object_of_a_folder_is_made(folder: Path, tmp_path: Path):
    proof = tmp_path / "proof"
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**weights, "model.norm.weight": _Evil(proof)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded as a causal language model"):
        load_generator(str(folder))
    padding = bytes(2**21)  # as much as the configuration needs
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Evil(proof)) + padding)
    with pytest.raises(ModelError):
        load_generator(str(folder))
    assert not proof.exists()
