"""POPri and private evolution that choose, and end, their rounds by released moments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flower_privsyn.report import write_run_page
from flower_privsyn.run.method import need
from flower_privsyn.run.rounds import last_state
from flower_privsyn.strategies import (
    MomentSketch,
    POPri,
    POPriConfig,
)
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words
from tests.support.federation import WORDS, make_users
from tests.support.popri import stored
from tests.support.probe import Killed
from tests.support.run_files import releases
from tests.support.traffic import check_planned

Builder = Callable[..., Any]


@pytest.fixture
def preferring(tmp_path: Path, public_file: Path) -> Builder:
    """POPri at a small size; keyword arguments replace settings and parts."""

    def build(trainer: Any = train_words, **changes: Any) -> POPri:
        values: dict[str, Any] = {
            "num_rounds": 4,
            "num_nodes": 2,
            "num_prompts": 8,
            "responses_per_prompt": 5,
            "rejected_rank": 4,
            "checkpoint": "fred",
            "moment_dimensions": 4,
            "public_text": str(public_file),
            "synthetic_samples": 20,
            "run_dir": str(tmp_path / "run"),
            "node_timeout": 0.2,
            "accept_noise": True,
            "noise_multiplier": 0.05,
            **changes,
        }
        return POPri(
            POPriConfig(**values),
            embedder=HashEmbedder(),
            generator=WordGenerator(WORDS),
            trainer=trainer,
        )

    return build


class TestPOPri:
    def test_moments_are_the_first_release_and_the_nearest_round_writes(
        self, federation: Builder, preferring: Builder
    ) -> None:
        grid = federation(make_users(30))
        strategy = preferring()
        strategy.start(grid)
        check_planned(strategy, size=32)
        run = strategy.run.path
        asked = [line["query"] for line in releases(run)]
        assert asked == ["moments"] + ["mean_similarity"] * 3
        sketch = MomentSketch.load(run)
        summary = strategy.run.state["summary"]
        _, state = need(last_state(strategy.run))
        distances = {int(n): value for n, value in summary["fred"].items()}
        assert sorted(distances) == [2, 3, 4, 5]
        for number, value in distances.items():
            # The last were written after the last release, to be judged alone.
            embeddings = state["embeddings"] if number == 5 else stored(run, number)[0]
            assert value == pytest.approx(sketch.frechet(embeddings), rel=1e-9)
        writer = min(distances, key=lambda number: distances[number])
        assert summary["writer"] == f"the adapter that wrote in round {writer}"
        page = write_run_page(strategy.run, run.with_suffix(".html")).read_text()
        assert "the released mean and covariance" in page

    def test_lost_moments_are_asked_for_again(
        self, federation: Builder, preferring: Builder
    ) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            if "privsyn.answer" in reply.content:
                raise Killed
            return [reply]

        with pytest.raises(Killed):
            preferring().start(federation(tamper=dying))
        strategy = preferring(resume=True)
        strategy.start(federation())
        assert [(r["query"], r["interrupted"]) for r in releases(strategy.run.path)] == [
            ("moments", True),
            ("moments", False),
            ("mean_similarity", False),
            ("mean_similarity", False),
        ]
