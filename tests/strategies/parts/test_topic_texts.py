"""Texts by topic: which are kept, which are written anew, and that the quotas stay exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.progress import Progress
from flower_privsyn.strategies.ctcl import write_by_topic


class Scripted:
    """Writes what it is told, text after text."""

    name = "scripted"

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def generate(
        self, prompts: Sequence[str], *, sampling: SamplingParameters, **_: Any
    ) -> list[list[str]]:
        return [[self.texts.pop(0) if self.texts else ""] for _ in prompts]


def written(texts: Sequence[str], kept: Path) -> Any:
    records, dropped = write_by_topic(
        Scripted(texts),
        ["a", "b"],
        [1.0, 1.0],
        2,
        sampling=SamplingParameters(seed=1),
        kept=kept,
        progress=Progress(),
    )
    return [(record["text"], *record["parent"]) for record in records], dropped


def test_in_place_of_a_text_that_is_not_kept_another_of_its_topic_is_written(
    tmp_path: Path,
) -> None:
    kept, dropped = written(["one", "a \ufffd", " one ", "two"], tmp_path / "kept")
    assert kept == [("one", "topic:0"), ("two", "topic:1")]
    assert dropped == {"broken-character": 1, "duplicate": 1}


def test_a_generator_of_which_nothing_can_be_kept(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="the generator scripted writes nothing"):
        written(["one"], tmp_path / "kept")
    # What it wrote before stays, and counts.
    kept, _ = written(["two"], tmp_path / "kept")
    assert kept == [("one", "topic:0"), ("two", "topic:1")]
