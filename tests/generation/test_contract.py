"""What every generator does, wherever its model runs; each real, of a small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import (
    OpenAIGenerator,
    SamplingParameters,
    TextGenerator,
    TransformersGenerator,
    load_generator,
    rehearse,
)
from flower_privsyn.testing import EchoGenerator
from tests.support.generation_server import Server

PROMPTS = ["The river", "A doctor waits under the old street, and", "Music", "My sister reads 3"]
SAMPLED = SamplingParameters(seed=3, max_new_tokens=10, temperature=2.0)


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


def of_folder(name: str) -> Callable[[pytest.FixtureRequest], TextGenerator]:
    return lambda request: TransformersGenerator(request.getfixturevalue(name), dtype="float32")


def of_gguf(request: pytest.FixtureRequest) -> TextGenerator:
    pytest.importorskip("xllamacpp", reason="the extra gguf is not installed")
    return load_generator(f"gguf:{request.getfixturevalue('gguf_tiny')}")


def of_server(request: pytest.FixtureRequest) -> OpenAIGenerator:
    return OpenAIGenerator(request.getfixturevalue("one_server").url, "tiny")


KINDS: dict[str, Callable[[pytest.FixtureRequest], TextGenerator]] = {
    "llama": of_folder("llama"),
    "gpt2": of_folder("gpt2"),
    "without a cache": lambda request: TransformersGenerator("privsyn-lstm", dtype="float32"),
    "bart": of_folder("bart"),
    "t5": of_folder("t5"),
    "server": of_server,
    "gguf": of_gguf,
}

#: Samples that are written together are rounded together.
NEARLY = ("gguf",)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, TextGenerator]:
    return request.param, KINDS[request.param](request)


def test_a_generator(kind: tuple[str, TextGenerator]) -> None:
    name, generator = kind
    assert isinstance(generator, TextGenerator)
    assert generator.name
    assert generator.generate([], sampling=SAMPLED) == []
    finished: list[int] = []
    found = generator.generate(PROMPTS, num_samples=3, sampling=SAMPLED, progress=finished.append)
    assert [len(texts) for texts in found] == [3] * 4
    assert sum(finished) == 12
    assert len({text for texts in found for text in texts}) == 12
    # Equal prompts have texts of their own, and another seed gives others.
    equal = generator.generate([PROMPTS[0]] * 2, sampling=SAMPLED)
    assert equal[0] != equal[1]
    other = replace(SAMPLED, seed=4)
    assert generator.generate(PROMPTS[:1], sampling=other)[0] != equal[0]
    rehearse(generator, PROMPTS[0], num_samples=2, sampling=SAMPLED)
    if name in NEARLY:
        return
    # A text depends on its prompt, its number and the seed, and on nothing beside it.
    again = generator.generate(PROMPTS[::-1], num_samples=3, sampling=SAMPLED)
    assert again[::-1] == found
    assert generator.generate(PROMPTS[1:2], num_samples=3, sampling=SAMPLED) == found[1:2]


@pytest.mark.parametrize("kind", ["server", "gguf"], indirect=True)
def test_one_that_answers_messages(kind: tuple[str, TextGenerator]) -> None:
    _, generator = kind
    sampling = SamplingParameters(seed=2**62, max_new_tokens=8)
    messages = ["Tell me of rivers.", "Of courts."]
    found = generator.generate(messages, num_samples=2, system="Be.", sampling=sampling)
    assert [len(texts) for texts in found] == [2, 2]


@pytest.mark.parametrize("answer", [[[" "]], [["a", "b"]], []])
def test_what_writes_nothing_or_something_else_is_found_before_it_is_needed(answer: Any) -> None:
    class Other(EchoGenerator):
        def generate(self, prompts: Sequence[str], **_: Any) -> list[list[str]]:
            return list(answer)

    with pytest.raises(GenerationError, match="echo"):
        rehearse(Other(), "a", sampling=SAMPLED)
