"""Texts by instruction, from base and from chat models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import (
    ByInstruction,
    OpenAIGenerator,
    SamplingParameters,
    TransformersGenerator,
    Variation,
    load_instruction,
)
from flower_privsyn.generation.prompts import Instruction
from flower_privsyn.testing import EchoGenerator
from tests.support.generation_server import Server

SAMPLING = SamplingParameters(seed=0, max_new_tokens=12, stop=("END",))
EVERYTHING = Instruction(
    name="everything",
    purpose="variation",
    base="{style}|{class}|{words}|{domain}|{blanked}|{text}",
    of_class="<{label}>",
    styles=("loud", "low"),
    stop=("\n",),
)


class Notes(EchoGenerator):
    """Answers what is scripted, and keeps what it was asked."""

    def __init__(self, answers: Sequence[str] = ()) -> None:
        self.answers = list(answers)
        self.prompts: list[str] = []
        self.sampling: Any = None

    def generate(self, prompts: Sequence[str], **kwargs: Any) -> list[list[str]]:
        self.prompts += prompts
        self.sampling = kwargs["sampling"]
        return [[text] for text in self.answers] if self.answers else [[p[::-1]] for p in prompts]


def asked(generator: Notes, instruction: Instruction = EVERYTHING, **asking: Any) -> ByInstruction:
    return ByInstruction(
        generator, instruction, sampling=SAMPLING, chat=False, domain="letters", **asking
    )


def test_what_stands_in_a_prompt() -> None:
    generator = Notes()
    variation = asked(generator, blank_fraction=1.0)
    assert isinstance(variation, Variation)
    variation.vary(["one  two\nthree"], seed=1, labels=["sad"])
    style, label, words, domain, blanked, text = generator.prompts[0].split("|")
    assert style in ("loud", "low")
    assert (label, words, domain, blanked, text) == (
        "<sad>",
        "25",
        "letters",
        "_ _ _",
        "one two three",
    )
    assert generator.sampling.stop == ("END", "\n")
    variation.vary(["one", "一週間いた。" * 10], seed=1)
    assert generator.prompts[1].split("|")[1] == ""
    assert generator.prompts[2].split("|")[2] == "30"


def test_words_styles_and_blanks_are_drawn_for_each_text_and_the_same_again() -> None:
    text = " ".join(["word"] * 100)
    generator = Notes()
    variation = asked(generator, blank_fraction=0.25, word_spread=40.0)
    first = variation.vary([text] * 400, seed=3)
    rows = [prompt.split("|") for prompt in generator.prompts]
    words = np.array([int(row[2]) for row in rows])
    assert words.min() == 25
    assert words[words > 25].mean() > 100
    assert np.std(words) == pytest.approx(38.0, abs=3.0)  # of a normal cut at two deviations
    blanks = [row[4].split().count("_") for row in rows]
    assert np.mean(blanks) == pytest.approx(25.0, abs=1.0)
    assert {row[0] for row in rows} == {"loud", "low"}
    assert len(set(generator.prompts)) > 390
    assert variation.vary([text] * 400, seed=3) == first
    assert generator.prompts[400:] == generator.prompts[:400]
    variation.vary([text] * 400, seed=4)
    assert generator.prompts[800:] != generator.prompts[:400]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("  a\n new   one ", "a new one"),
        ('"a new one"', "a new one"),
        ("\u201ca new one\u201d (3 words)", "a new one"),
        ("a new one (12 words)", "a new one"),
        ("", "old"),
        (" \n ", "old"),
        ("half a char\ufffd", "old"),
        ('"', '"'),
    ],
)
def test_an_answer_becomes_one_line_and_nothing_stays_as_it_was(answer: str, text: str) -> None:
    assert asked(Notes([answer])).vary(["old"], seed=0) == [text]


def test_texts_are_written_where_there_were_none() -> None:
    generator = Notes()
    instruction = load_instruction("write", purpose="beginning")
    written = asked(generator, instruction).write(3, words=60, seed=5, labels=["a", "b", "a"])
    assert len(written) == 3
    assert ["60 words" in prompt for prompt in generator.prompts] == [True] * 3
    assert ['"b"' in prompt for prompt in generator.prompts] == [False, True, False]


class TestChat:
    def chat(self, server: Server, **options: Any) -> OpenAIGenerator:
        return OpenAIGenerator(server.url, "tiny", max_retries=1, **options)

    def test_messages_are_sent_each_in_a_conversation_and_without_tools(
        self, server: Server
    ) -> None:
        generator = self.chat(server)
        variation = ByInstruction(
            generator,
            load_instruction("style", purpose="variation"),
            domain="letters",
            sampling=SAMPLING,
            chat=True,
        )
        finished: list[int] = []
        found = variation.vary(["one", "two", "one"], seed=2, progress=finished.append)
        assert sum(finished) == 3
        assert len(set(found)) == 3  # equal texts are asked with other seeds
        assert variation.vary(["one", "two", "one"], seed=2) == found
        path, body, _ = server.requests[0]
        assert path == "/v1/chat/completions"
        assert set(body) == {
            "model", "messages", "n", "seed", "max_tokens", "temperature", "top_p", "stop",
        }  # fmt: skip
        assert [message["role"] for message in body["messages"]] == ["system", "user"]
        assert "letters" in body["messages"][0]["content"]
        assert body["stop"] == ["END"]  # an answer may have several lines

    def test_a_model_of_this_process_answers_by_its_own_template(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        generator = TransformersGenerator("privsyn-lm")
        with pytest.raises(GenerationError, match="'privsyn-lm' has no chat template"):
            generator.generate(["hello"], system="", sampling=SAMPLING)
        generator._tokenizer.chat_template = (
            "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}"
        )
        answered = generator.generate(["hello", "you"], system="Be kind.", sampling=SAMPLING)
        prompts = [f"system: Be kind.\nuser: {text}\nassistant:" for text in ("hello", "you")]
        assert answered == generator.generate(prompts, sampling=SAMPLING)
        # Thoughts that a template begins and that end nowhere are no answer.
        generator._tokenizer.chat_template += "<think>"
        assert generator.generate(["hello"], system="", sampling=SAMPLING) == [[""]]
        assert caplog.messages[-1].startswith("1 of 1 answers of model privsyn-lm are no text")


def test_a_model_that_answers_without_a_text_is_found_when_it_is_tried() -> None:
    with pytest.raises(GenerationError, match="the generator echo was asked 4 times for a text"):
        asked(Notes(['" "'])).rehearse()
    asked(Notes(['"A text."'])).rehearse()
