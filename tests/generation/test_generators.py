"""From a name to a generator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flower_privsyn.generation import (
    OpenAIGenerator,
    SamplingParameters,
    load_generator,
    load_trained_generator,
)
from flower_privsyn.queries import TrainableModel
from flower_privsyn.training.local import LocalModel


@pytest.mark.parametrize("template", [False, True])
def test_a_trained_generator_reads_what_its_training_read(
    template: bool, gpt2: Path, roberta: Path, tmp_path: Path
) -> None:
    """A GPT-2 has one token for beginning and end, and its tokenizer puts neither."""
    from transformers import AutoTokenizer

    folder = tmp_path / "model"
    shutil.copytree(gpt2, folder)
    tokenizer = AutoTokenizer.from_pretrained(roberta if template else gpt2)
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    prompts = ["Keywords: river, doctor\nDocument:\n", "", "the river"]
    read = LocalModel(TrainableModel(name=str(folder))).encode(prompts)
    assert [row[0] for row in read] == [tokenizer.eos_token_id] * 3
    trained = load_trained_generator(folder)
    sampling = SamplingParameters(seed=0, max_new_tokens=8, temperature=0)
    assert trained._tokenize(prompts, sampling) == read
    # The same texts as of a generator that is given the token by name, where no template has it.
    if not template:
        named = [tokenizer.eos_token + prompt for prompt in prompts]
        texts = load_generator(str(folder)).generate(named, sampling=sampling)
        assert trained.generate(prompts, sampling=sampling) == texts
        assert load_generator(str(folder)).generate(prompts, sampling=sampling) != texts


def test_a_server_with_its_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THE_KEY", "key")
    generator = load_generator("http://127.0.0.1:9/v1/#owner/name", api_key_env="THE_KEY")
    assert isinstance(generator, OpenAIGenerator)
    assert generator.name == "owner/name at http://127.0.0.1:9/v1"
    assert generator._client.api_key == "key"
    without = load_generator("http://127.0.0.1:9/v1/#owner/name")
    assert isinstance(without, OpenAIGenerator)
    assert without._client.api_key == "none"
