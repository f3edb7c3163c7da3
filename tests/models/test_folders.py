"""A folder may hold weights and tables; code and objects are refused."""

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


@pytest.fixture
def folder(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


def _set(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


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
