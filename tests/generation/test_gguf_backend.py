"""llama.cpp on a small model that it really runs."""

from __future__ import annotations

import struct
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_privsyn.errors import ModelError
from flower_privsyn.generation import SamplingParameters, TransformersGenerator, load_generator
from flower_privsyn.generation.gguf_backend import GGUFGenerator, read_gguf

pytest.importorskip("xllamacpp", reason="the extra gguf is not installed")

PROMPTS = ["The river", "A doctor waits under the old street, and", "Music", "My sister reads 3"]
GREEDY = SamplingParameters(seed=0, max_new_tokens=24, temperature=0)


@pytest.fixture(scope="module")
def generator(gguf_tiny: Path) -> GGUFGenerator:
    made = load_generator(f"gguf:{gguf_tiny}")
    assert isinstance(made, GGUFGenerator)
    return made


def test_it_writes_what_transformers_writes(generator: GGUFGenerator):
    expected = TransformersGenerator("privsyn-tiny", dtype="float32").generate(
        PROMPTS, sampling=GREEDY
    )
    assert generator.generate(PROMPTS, sampling=GREEDY) == expected


def test_nobody_without_the_key_is_answered(generator: GGUFGenerator):
    address = f"{generator._server.listening_address}/v1/completions"
    asked = urllib.request.Request(address, b'{"prompt": "The"}', method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == 401


def test_a_broken_file(gguf_tiny: Path, tmp_path: Path):
    file, whole = tmp_path / "cut.gguf", gguf_tiny.read_bytes()
    file.write_bytes(whole[:-1000])
    with pytest.raises(ModelError, match="no whole GGUF file"):
        load_generator(f"gguf:{file}")
    file.write_bytes(whole.replace(b"attn_k.weight", b"attn_k.height"))
    with pytest.raises(ModelError, match="llama.cpp cannot load cut.gguf"):
        load_generator(f"gguf:{file}")
    with pytest.raises(ModelError, match="does not exist"):
        load_generator("gguf:no.gguf")
    with pytest.raises(ModelError, match="or gguf:FILE as a generator"):
        load_generator(str(gguf_tiny))


def test_a_whole_file(gguf_llama: Path):
    # Keys and values, two layers, two heads of 64, two bytes.
    assert read_gguf(gguf_llama) == (256, 2 * 2 * 2 * 64 * 2)


_EMBEDDING = b"token_embd.weight" + struct.pack("<I", 2)

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "magic": lambda content: b"GGML" + content[4:],
    "a billion tensors": lambda content: content[:8] + struct.pack("<Q", 10**9) + content[16:],
    "cut in the weights": lambda content: content[:-1000],
    "a huge shape": lambda content: content.replace(
        _EMBEDDING + struct.pack("<Q", 128), _EMBEDDING + struct.pack("<Q", 2**40)
    ),
    "no architecture": lambda content: content.replace(b"general.architec", b"general.architek"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken(name: str, gguf_llama: Path, tmp_path: Path):
    file = tmp_path / "model.gguf"
    changed = BROKEN[name](gguf_llama.read_bytes())
    assert changed != gguf_llama.read_bytes()
    file.write_bytes(changed)
    with pytest.raises(ModelError, match=r"model\.gguf") as caught:
        read_gguf(file)
    assert "\n" not in str(caught.value)
