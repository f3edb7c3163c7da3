"""A chat model that goes on with prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation import Expand, SamplingParameters, load_generator, load_prompt
from flower_privsyn.generation.backends import TextGenerator
from flower_privsyn.generation.by_messages import ByMessages
from flower_privsyn.testing import EchoGenerator
from tests.support.generation_server import Server

SAMPLING = SamplingParameters(seed=3, max_new_tokens=20)
SEEDS = ["a first text", "a second text", "a third text"]


class Chat(EchoGenerator):
    """Answers every message alike, and keeps what it was told."""

    name = "chat"

    def __init__(self, answer: str = "a new text") -> None:
        self.says = answer
        self.told: list[tuple[str, str]] = []
        self.sampling: SamplingParameters | None = None

    def answer(
        self,
        messages: Sequence[str],
        *,
        system: str = "",
        sampling: SamplingParameters,
        progress: Any = None,
    ) -> list[str]:
        self.told += [(system, message) for message in messages]
        self.sampling = sampling
        if progress is not None:
            progress(len(messages))
        return [self.says] * len(messages)


def test_prompts_are_messages_after_the_instruction() -> None:
    chat = Chat()
    generator = ByMessages(chat, instruction="Go on.")
    assert isinstance(generator, TextGenerator)
    assert generator.name == "chat"
    done: list[int] = []
    texts = generator.generate(
        ["one\n", "two\n"], num_samples=2, sampling=SAMPLING, progress=done.append
    )
    assert texts == [["a new text"] * 2] * 2
    assert chat.told == [("Go on.", prompt) for prompt in ("one\n", "one\n", "two\n", "two\n")]
    assert chat.sampling == SAMPLING
    assert sum(done) == 4


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("a new text", "a new text"),
        ("\n a new text \n", "a new text"),
        ('"a new text"', "a new text"),
        ("\u201ca new text\u201d", "a new text"),
        ('"a" and "b"', 'a" and "b'),
        ("Sample 4\na new text", "a new text"),
        ("**Sample 4:**\n\na new text", "a new text"),
        ("## Sample 4\n#tagged text", "#tagged text"),
        ('Sample 4: "a new text"', "a new text"),
        ("a new text\nSample 5\nanother", "a new text\nSample 5\nanother"),
        ("- a list\n- of two", "- a list\n- of two"),
        ("", ""),
    ],
)
def test_a_heading_that_is_repeated_is_no_part_of_the_text(answer: str, text: str) -> None:
    generator = ByMessages(Chat(answer), instruction="")
    ((found,),) = generator.generate(["Sample 3\nold\nSample 4\n"], sampling=SAMPLING)
    assert found == text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("The court of appeal held", " of appeal held"),
        ("of appeal held", " of appeal held"),
        ('"The court of appeal held"', " of appeal held"),
        (", which held", ", which held"),
        ("", ""),
    ],
)
def test_an_opening_is_gone_on_with_whether_or_not_it_is_repeated(answer: str, text: str) -> None:
    generator = ByMessages(Chat(answer), instruction="")
    ((found,),) = generator.generate(["Sample 4\nThe court"], sampling=SAMPLING)
    assert found == text


def test_what_takes_no_messages_and_adapters_are_refused() -> None:
    with pytest.raises(ConfigError, match="echo takes no messages: name a server"):
        ByMessages(EchoGenerator(), instruction="")
    with pytest.raises(GenerationError, match="no adapter is trained for: somewhere cannot write"):
        ByMessages(Chat(), instruction="").generate(
            ["a\n"], sampling=SAMPLING, adapter=Path("somewhere")
        )


def test_an_answer_too_few_is_noticed() -> None:
    class Silent(Chat):
        def answer(self, messages: Sequence[str], **kwargs: Any) -> list[str]:
            return super().answer(messages[1:], **kwargs)

    with pytest.raises(GenerationError, match="was sent 2 messages and answered 1"):
        ByMessages(Silent(), instruction="").generate(["a", "b"], sampling=SAMPLING)


def test_a_server_is_rehearsed_and_expands_by_messages_alone(server: Server) -> None:
    prompt = load_prompt("pre-text")
    model = load_generator(f"{server.url}#tiny")
    expand = Expand(
        ByMessages(model, instruction=prompt.instruction),
        prompt=prompt,
        sampling=SamplingParameters(seed=0, max_new_tokens=33),
    )
    expand.rehearse(SEEDS)
    ((path, body, _),) = server.requests
    # As the run will ask: one that thinks before it answers says nothing in a single token.
    assert (path, body["max_tokens"]) == ("/v1/chat/completions", 33)
    result = expand.run(SEEDS, num_samples=7, seed=5)
    assert len(set(result.texts)) == 7
    assert {path for path, _, _ in server.requests} == {"/v1/chat/completions"}
    system, user = server.requests[-1][1]["messages"]
    assert system == {"role": "system", "content": prompt.instruction}
    assert "the text alone" in prompt.instruction
    assert user["role"] == "user"
    assert user["content"].endswith("Original Text Sample 4\n")


def test_a_prompt_file_has_an_instruction_of_its_own(tmp_path: Path) -> None:
    import json

    values: dict[str, Any] = {
        "name": "mine",
        "heading": "Reviews:",
        "marker": "Review {number}",
        "num_samples": 6,
        "instruction": "Write one more review.",
    }
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(values))
    assert load_prompt(file).instruction == "Write one more review."
    file.write_text(json.dumps({**values, "instruction": ["a"]}))
    with pytest.raises(ConfigError, match="prompt setting instruction must be a string"):
        load_prompt(file)
