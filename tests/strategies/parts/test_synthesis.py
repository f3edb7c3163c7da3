"""Texts that are written after examples, of which the best are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.errors import GenerationError
from flower_privsyn.files import read_json_lines
from flower_privsyn.generation import Expand, SamplingParameters
from flower_privsyn.host.progress import NullProgress
from flower_privsyn.strategies.parts.synthesis import write_after
from flower_privsyn.testing import EchoGenerator

EXAMPLES = [f"example {word} of a text about {word} and more of it" for word in "abcdefgh"]


@pytest.mark.parametrize("best_of", [1, 3])
def test_the_best_of_so_many_are_kept_as_they_were_written(best_of: int, tmp_path: Path) -> None:
    kept = tmp_path / "written.jsonl"
    records, _ = write_after(
        Expand(EchoGenerator(), sampling=SamplingParameters(seed=0, max_new_tokens=12)),
        EXAMPLES,
        ids=[f"public:{index}" for index in range(len(EXAMPLES))],
        num_samples=4,
        best_of=best_of,
        seed=0,
        score=lambda texts: np.array([float(len(text)) for text in texts]),
        kept=kept,
        progress=NullProgress(),
    )
    written = [record["text"] for record in read_json_lines(kept)]
    assert len(written) == 4 * best_of
    best = sorted(written, key=len, reverse=True)[:4]
    assert [record["text"] for record in records] == [text for text in written if text in best]
    assert {record["source"] for record in records} == {"written"}


def test_examples_after_which_nothing_is_written(tmp_path: Path) -> None:
    class Silent(EchoGenerator):
        def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
            return [[""] for _ in prompts]

    with pytest.raises(GenerationError, match=r"asked for 6 texts and wrote none .* 24 empty\)"):
        write_after(
            Expand(Silent()),
            EXAMPLES,
            ids=[f"public:{index}" for index in range(len(EXAMPLES))],
            num_samples=2,
            best_of=3,
            seed=0,
            score=pytest.fail,
            kept=tmp_path / "written.jsonl",
            progress=NullProgress(),
        )
