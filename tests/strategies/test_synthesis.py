"""Texts that are written after examples, of which the best are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_privsyn.files import read_json_lines
from flower_privsyn.generation import Expand, SamplingParameters, TransformersGenerator
from flower_privsyn.run.progress import NullProgress
from flower_privsyn.strategies._synthesis import write_after
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


class Killed(BaseException):
    """As of a process that ends."""


@pytest.mark.parametrize("prompt", ["pre-text", None])
def test_a_run_that_is_killed_while_it_writes_ends_in_the_same_texts(
    prompt: str | None, tmp_path: Path
) -> None:
    class Dying(TransformersGenerator):
        calls = 0
        dies_at = 0

        def generate(self, *arguments: Any, **keywords: Any) -> list[list[str]]:
            self.calls += 1
            if self.calls == self.dies_at:
                raise Killed
            return super().generate(*arguments, **keywords)

    def write(kept: Path, dies_at: int) -> list[dict[str, Any]]:
        generator = Dying("privsyn-tiny", dtype="float32", batch_size=4)
        generator.dies_at = dies_at
        expand = Expand(
            generator,
            prompt=prompt,
            refuse_repetition=True,
            sampling=SamplingParameters(seed=0, max_new_tokens=12),
        )
        records, _ = write_after(
            expand,
            EXAMPLES,
            ids=[f"public:{index}" for index in range(len(EXAMPLES))],
            num_samples=10,
            best_of=1,
            seed=3,
            score=lambda texts: np.zeros(len(texts)),
            kept=kept,
            progress=NullProgress(),
        )
        return records

    whole = write(tmp_path / "whole.jsonl", 0)
    assert len({record["text"] for record in whole}) == 10
    assert all(bool(record["parent"]) == bool(prompt) for record in whole)
    for dies_at in (2, 3):
        kept = tmp_path / f"{dies_at}.jsonl"
        with pytest.raises(Killed):
            write(kept, dies_at)
        assert list(read_json_lines(kept))
        assert write(kept, 0) == whole
