"""From a name to a generator."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from flower_privsyn.errors import ConfigError, MissingExtraError, ModelError
from flower_privsyn.generation import OpenAIGenerator, TransformersGenerator, load_generator


def test_a_folder(llama: Path):
    generator = load_generator(str(llama), dtype="float32", batch_size=3)
    assert isinstance(generator, TransformersGenerator)
    assert generator._batch_size == 3


def test_a_server_with_its_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_KEY", "key")
    generator = load_generator("http://127.0.0.1:9/v1/#owner/name", api_key_env="THE_KEY")
    assert isinstance(generator, OpenAIGenerator)
    assert generator.name == "owner/name at http://127.0.0.1:9/v1"
    assert generator._client.headers["Authorization"] == "Bearer key"
    without = load_generator("http://127.0.0.1:9/v1/#owner/name")
    assert isinstance(without, OpenAIGenerator)
    assert "Authorization" not in without._client.headers


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_in_this_process_where_it_is_not_installed():
    with pytest.raises(MissingExtraError, match="vllm serve"):
        load_generator("vllm:privsyn-lm")


@pytest.mark.parametrize("name", ["", "  ", None])
def test_no_name(name: object):
    with pytest.raises(ConfigError, match="must be a model name"):
        load_generator(name)  # type: ignore[arg-type]


def test_what_does_not_exist():
    with pytest.raises(ModelError, match="does not exist"):
        load_generator("./no/such/model")
    with pytest.raises(ModelError, match="privsyn-xl"):
        load_generator("privsyn-xl")
    with pytest.raises(ConfigError, match="base_url"):
        load_generator("http://#model")
