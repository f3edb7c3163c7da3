"""Texts by topic: which are kept, which are written anew, and that the quotas stay exact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.run.progress import NullProgress
from flower_privsyn.strategies.ctcl import TopicWriter


class Scripted:
    """Writes what it is told, text after text, and remembers how it was asked."""

    name = "scripted"

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.asked: list[SamplingParameters] = []

    def generate(
        self, prompts: Sequence[str], *, sampling: SamplingParameters, **_: Any
    ) -> list[list[str]]:
        self.asked.append(sampling)
        return [[self.texts.pop(0) if self.texts else ""] for _ in prompts]


def written(texts: Sequence[str], kept: Path, *, count: int = 2, **settings: Any) -> Any:
    sampling = SamplingParameters(seed=1, repetition_penalty=1.5)
    writer = TopicWriter(
        generator=Scripted(texts), conditions=["a", "b"], sampling=sampling, **settings
    )
    records, dropped = writer.write([1.0, 1.0], count, kept=kept, progress=NullProgress())
    return [record["text"] for record in records], dropped, writer


FINE = "the river was wide, and a doctor crossed it."
REFUSED = {
    "with an overlong word": "see aaaaaaaaaaaaaaaaaaaaaaaaaa today",
    "without a word in letters": "1 2 3 !",
    "without a word of its own": "the a the, a.",
    "one word over and over": "well " * 21 + "done",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_the_released_filter(reason: str, tmp_path: Path) -> None:
    text = REFUSED[reason].strip()
    kept, dropped, _ = written([text, FINE], tmp_path / "all")
    assert kept == [text, FINE]
    assert dropped == {}
    kept, dropped, writer = written(
        [text, FINE, "another one"], tmp_path / "some", word_filter="released"
    )
    assert kept == [FINE, "another one"]
    assert dropped == {reason: 1}
    # In place of what is left out another text of the same topic is written.
    parents = [record["parent"] for record in writer._kept_before(tmp_path / "some", [1, 1])[0]]
    assert sorted(parents) == [["topic:0"], ["topic:1"]]
    assert writer.generator.asked[0].repetition_penalty == 1.5


def test_a_generator_of_which_nothing_can_be_kept(tmp_path: Path) -> None:
    sentence = (
        "the generator scripted writes nothing that can be kept: of the last 20 texts each was "
        f"empty or broken; 1 of 2 texts are kept in {tmp_path / 'kept'}"
    )
    # What was dropped before a text was kept is no reason to give up.
    with pytest.raises(GenerationError, match=f"^{re.escape(sentence)}$"):
        written(["1 2 3", "one"], tmp_path / "kept", word_filter="released")
    # What it wrote before stays, and counts.
    texts, _, _ = written(["two"], tmp_path / "kept")
    assert Counter(texts) == Counter(["one", "two"])
