"""Texts that are written after examples, whatever kills the process that writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.files import read_json_lines
from flower_privsyn.generation import Expand, SamplingParameters, TransformersGenerator
from flower_privsyn.progress import Progress
from flower_privsyn.strategies._synthesis import expand_resumably
from tests.support.probe import Killed

EXAMPLES = [f"example {word} of a text about {word} and more of it" for word in "abcdefgh"]


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
            sampling=SamplingParameters(seed=0, max_new_tokens=12),
        )
        records, _ = expand_resumably(
            expand,
            EXAMPLES,
            ids=[f"public:{index}" for index in range(len(EXAMPLES))],
            num_samples=10,
            kept=kept,
            seed=3,
            round_number=1,
            source="written",
            stage="Write",
            progress=Progress(),
        )
        return records

    whole = write(tmp_path / "whole.jsonl", 0)
    assert len({record["text"] for record in whole}) == 10
    assert all(record["parent"] for record in whole)
    for dies_at in (2, 3):
        kept = tmp_path / f"{dies_at}.jsonl"
        with pytest.raises(Killed):
            write(kept, dies_at)
        assert list(read_json_lines(kept))
        assert write(kept, 0) == whole
