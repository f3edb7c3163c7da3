"""llama.cpp on a small model that it really runs."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flower_privsyn.errors import GenerationError, ModelError
from flower_privsyn.generation import SamplingParameters, TransformersGenerator, load_generator
from flower_privsyn.generation.gguf_backend import GGUFGenerator

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


def test_it_loads_no_adapters(generator: GGUFGenerator, tmp_path: Path):
    with pytest.raises(GenerationError, match="adapter"):
        generator.generate(PROMPTS, sampling=GREEDY, adapter=tmp_path)


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
