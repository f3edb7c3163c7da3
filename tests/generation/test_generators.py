"""From settings, or a name, to a generator: what they say reaches it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError
from flower_privsyn.generation import (
    SamplingParameters,
    load_generator,
    load_prompt,
    load_trained_generator,
)
from flower_privsyn.generation.generators import ExpandingSettings
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.strategies import JointSketchConfig, POPriConfig, PrivateEvolutionConfig
from flower_privsyn.strategies.more_text import MoreText
from flower_privsyn.training.local import LocalModel
from tests.support.generation_server import Server


def test_settings_reach_the_server(server: Server) -> None:
    settings = ExpandingSettings(
        generator=f"{server.url}#tiny",
        generator_parameters='{"top_k": 7, "stop": null}',
    )
    generator: Any = settings.load_generator()
    generator.generate(["a"] * 9, sampling=SamplingParameters(seed=1, stop=("END",)))
    (_, body, _) = server.requests[-1]
    assert body["top_k"] == 7
    assert "stop" not in body


def test_what_expands_asks_a_chat_model_by_messages_alone(server: Server) -> None:
    prompt = load_prompt("pre-text")
    settings = ExpandingSettings(
        generator=f"{server.url}#tiny",
        generator_interface="chat",
        max_new_tokens=33,
        domain="speeches",
    )
    expand = settings.expansion_by("pre-text")
    seeds = ["a first text", "a second text", "a third text"]
    expand.rehearse(seeds)
    # As the run will ask: one that thinks before it answers says nothing in a single token.
    assert server.requests[0][1]["max_tokens"] == 33
    assert len(set(expand.run(seeds, num_samples=7, seed=5).texts)) == 7
    assert set(server.paths()) == {"/v1/chat/completions"}
    system, user = server.requests[-1][1]["messages"]
    assert system == {"role": "system", "content": prompt.about("speeches").instruction}
    assert user["content"].endswith("Original Text Sample 4\n")


def test_a_server_gets_more_than_it_answers_at_once(server: Server) -> None:
    sizes: list[int] = []
    settings = MoreText(generator=f"{server.url}#tiny")
    result = settings.expansion_by(settings.prompt).run(
        [f"seed {number}" for number in range(20)],
        num_samples=150,
        seed=0,
        on_batch=lambda texts, *_: sizes.append(len(texts)),
    )
    assert len(result.texts) == 150
    assert sizes == [150]


@pytest.mark.parametrize("text", ["top_k=20", "sk-0123456789", "[1]"])
def test_what_is_not_to_be_sent_is_refused_and_may_be_a_key(text: str) -> None:
    with pytest.raises(ConfigError, match="generator-parameters") as refused:
        MoreText(generator="http://a:1/v1#m", generator_parameters=text)
    assert "sk-0" not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("settings", [PrivateEvolutionConfig, POPriConfig, JointSketchConfig])
def test_settings_refuse_them_where_no_server_writes(settings: Any) -> None:
    with pytest.raises(ConfigError, match="generator-parameters are sent to a server"):
        settings(epsilon=1.0, generator_parameters='{"top_k": 1}')


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
