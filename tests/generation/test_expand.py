"""Expansion: which seeds stand in a prompt, what is kept, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import Expand, SamplingParameters, load_prompt
from flower_privsyn.generation.expand import DROP_REASONS
from flower_privsyn.generation.prompts import QUOTE, quoted


class Scripted:
    """A generator that writes what a function of (prompt, number of the prompt) says."""

    name = "scripted"

    def __init__(self, write: Callable[[str, int], str], *, at_once: int = 64) -> None:
        self.write = write
        self.at_once = at_once
        self.prompts: list[str] = []
        self.calls: list[dict[str, object]] = []

    def generate(self, prompts: Sequence[str], **named: object) -> list[list[str]]:
        self.calls.append({"size": len(prompts), **named})
        written = []
        for prompt in prompts:
            written.append([self.write(prompt, len(self.prompts))])
            self.prompts.append(prompt)
        return written


def _numbered(prompt: str, number: int) -> str:
    return f"new text {number}\nOriginal Text Sample 5\nand more"


JAPANESE = "彼女は朝の電車で{0}番目の駅まで行き友達に会った。"
SEEDS = [f"seed number {number}" for number in range(50)]


def test_every_prompt_holds_different_seeds_and_parents_name_them():
    generator = Scripted(_numbered)
    result = Expand(generator).run(SEEDS, num_samples=100, seed=1)
    assert result.texts == [f"new text {number}" for number in range(100)]
    prompt = load_prompt("pre-text")
    for rendered, parents in zip(generator.prompts, result.parents, strict=True):
        assert len(set(parents)) == 3
        assert rendered == prompt.render([SEEDS[index] for index in parents])
    assert len(generator.prompts) == 100
    assert result.dropped == dict.fromkeys(DROP_REASONS, 0)
    for seed, same in ((1, True), (2, False)):
        again = Expand(Scripted(_numbered)).run(SEEDS, num_samples=100, seed=seed)
        assert (again.parents == result.parents) == same


def test_without_a_prompt_the_text_of_a_quotation_is_written():
    generator = Scripted(
        lambda prompt, number: f"A sentence of several words, which has number {number}."
    )
    expand = Expand(generator, prompt=None, domain="speeches")
    shown = ['They said "No" twice.', "They never said why."]
    assert len(expand.run(shown, num_samples=2, seed=1).texts) == 2
    begin, *learnt = (quoted("speeches", text) for text in ("", *shown))
    opening = begin.removesuffix(QUOTE)
    assert "speeches" in opening
    assert learnt[0] == f"{opening}They said 'No' twice.{QUOTE}"
    for prompt in generator.prompts:
        first, second, last = prompt.replace(f"\n\n{opening}", f"\0{opening}").split("\0")
        assert ({first, second}, last) == (set(learnt), opening)
    assert generator.calls[0]["sampling"].stop == (QUOTE,)


def test_the_generator_gets_a_new_seed_each_time_and_the_prompts_stop_string():
    generator = Scripted(_numbered, at_once=10)
    expand = Expand(
        generator,
        sampling=SamplingParameters(seed=9, temperature=0.7, max_new_tokens=20, stop=("###",)),
    )
    expand.run(SEEDS, num_samples=30, seed=1, adapter=Path("adapter"))
    samplings = [call["sampling"] for call in generator.calls]
    assert len({sampling.seed for sampling in samplings}) == 3
    for sampling in samplings:
        assert (sampling.temperature, sampling.max_new_tokens) == (0.7, 20)
        assert sampling.stop == ("###", load_prompt("pre-text").stop)
    assert {call["adapter"] for call in generator.calls} == {Path("adapter")}


def test_what_is_dropped_is_counted_by_reason():
    def write(prompt: str, number: int) -> str:
        kind = number % 6
        if kind == 0:
            return "  \nOriginal Text Sample 5\n"
        if kind == 1:
            return "again\n  and   again"
        if kind == 2:
            return prompt.splitlines()[4] + "\n"  # the second example
        if kind == 3:
            return "half a \ufffd character"
        return f"text {number}"

    generator = Scripted(write, at_once=7)
    result = Expand(generator).run(SEEDS, num_samples=20, seed=1)
    assert len(result.texts) == 20
    assert sum(text.split() == ["again", "and", "again"] for text in result.texts) == 1
    kinds = Counter(number % 6 for number in range(len(generator.prompts)))
    assert result.dropped["empty"] == kinds[0]
    assert result.dropped["duplicate"] == kinds[1] - 1
    assert result.dropped["copy-of-example"] == kinds[2]
    assert result.dropped["broken-character"] == kinds[3]
    assert len(generator.prompts) == 20 + sum(result.dropped.values())


def test_attempts_are_bounded():
    generator = Scripted(lambda prompt, number: "always the same", at_once=8)
    result = Expand(generator).run(SEEDS, num_samples=10, seed=0)
    assert result.texts == ["always the same"]
    assert len(generator.prompts) == 40
    assert result.dropped["duplicate"] == 39


def test_finished_texts_are_handed_out_before_a_failure():
    kept: list[str] = []
    origins: list[tuple[int, ...]] = []

    def write(prompt: str, number: int) -> str:
        if number == 25:
            raise GenerationError("the server went away")
        return f"text {number}"

    def on_batch(texts: Sequence[str], parents: Sequence[tuple[int, ...]], attempts: int) -> None:
        kept.extend(texts)
        origins.extend(parents)

    expand = Expand(Scripted(write, at_once=10))
    with pytest.raises(GenerationError, match="went away"):
        expand.run(SEEDS, num_samples=40, seed=0, on_batch=on_batch)
    assert kept == [f"text {number}" for number in range(20)]
    assert len(origins) == 20


@pytest.mark.parametrize("seeds", [["only one"], ["one", "one", "", " one "], ["one", "two"]])
def test_fewer_seeds_than_examples(seeds: list[str]):
    generator = Scripted(_numbered)
    result = Expand(generator).run(seeds, num_samples=5, seed=0)
    assert len(result.texts) == 5
    distinct = len({text.strip() for text in seeds if text})
    assert {len(parents) for parents in result.parents} == {distinct}
    assert generator.prompts[0].count("Original Text Sample") == distinct + 1


class TestWholeSentences:
    """Of seeds that are whole sentences, and of no others."""

    SEEDS = tuple(f"Here is the seed with the number {number}." for number in range(20))

    def test_only_whole_sentences_of_some_length_are_kept(self) -> None:
        texts = [
            "All of these nine words make one whole sentence. And this",
            "in the middle of something that ends with a stop.",
            "Too short.",
            "No end of a sentence in all of these many words",
        ]
        generator = Scripted(lambda _, number: texts[number % 4])
        result = Expand(generator).run(self.SEEDS, num_samples=1, seed=0)
        assert result.texts == ["All of these nine words make one whole sentence."]
        again = Scripted(lambda _, number: texts[1 + number % 3])
        result = Expand(again).run(self.SEEDS, num_samples=3, seed=0)
        assert result.texts == []
        assert result.dropped["no-sentence"] == len(again.prompts) == 12
        other = Scripted(lambda _, number: JAPANESE.format(number))
        assert len(Expand(other).run(self.SEEDS, num_samples=2, seed=0).texts) == 2

    @pytest.mark.parametrize("said", ["All of the people and {} of the people came.", JAPANESE * 2])
    def test_repetition_is_dropped(self, said: str) -> None:
        generator = Scripted(lambda _, number: said.format(number))
        assert len(Expand(generator).run(SEEDS, num_samples=2, seed=0).texts) == 2
        result = Expand(generator).run(self.SEEDS, num_samples=2, seed=0)
        assert result.dropped["repetition"] == 8

    def test_a_long_text_may_say_three_words_twice(self) -> None:
        words = " ".join(f"word{number}" for number in range(60))
        for times, kept in ((1, 1), (3, 0)):
            text = f"Here one of the {words} is {'one of the ' * times}last."
            result = Expand(Scripted(lambda _, __, text=text: text)).run(
                self.SEEDS, num_samples=1, seed=0
            )
            assert len(result.texts) == kept
