"""POPri and private evolution that choose, and end, their rounds by released moments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from flwr.app import Message

from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.report import write_run_page
from flower_privsyn.strategies import (
    KernelSketchConfig,
    MomentSketch,
    POPri,
    POPriConfig,
    PrivateEvolutionConfig,
)
from flower_privsyn.strategies.parts.candidates import Candidates
from flower_privsyn.strategies.parts.population import survivors
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words
from tests.support.federation import WORDS, make_users, rounds_asked, silent
from tests.support.methods import learning_nothing
from tests.support.probe import Killed
from tests.support.run_files import lines, releases
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
        distances = {int(n): value for n, value in summary["fred"].items()}
        assert sorted(distances) == [2, 3, 4, 5]
        for number, value in distances.items():
            stored = Candidates.from_parquet(
                run / "rounds" / f"{number:04d}" / "candidates.parquet"
            )
            assert value == pytest.approx(sketch.frechet(stored.embeddings), rel=1e-9)
        writer = min(distances, key=lambda number: distances[number])
        assert summary["writer"] == f"the adapter that wrote in round {writer}"
        page = write_run_page(strategy.run, run.with_suffix(".html")).read_text()
        assert "the released mean and covariance" in page

    def test_patience_ends_the_spending(self, federation: Builder, preferring: Builder) -> None:
        grid = federation(make_users(30))
        strategy = preferring(learning_nothing, patience=1, num_rounds=20)
        strategy.start(grid)
        charged = releases(strategy.run.path)
        assert 2 <= len(charged) < 20
        assert rounds_asked(grid) == list(range(1, len(charged) + 1))

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


class TestPrivateEvolution:
    @pytest.fixture
    def evolving(self, settings: Builder) -> Builder:
        def build(**changes: Any) -> PrivateEvolutionConfig:
            return settings(
                **{
                    "num_rounds": 4,
                    "survivors_of": "fred",
                    "moment_dimensions": 4,
                    "noise_multiplier": 0.05,
                    **changes,
                }
            )

        return build

    def test_survivors_of_the_nearest_round_are_expanded(
        self, federation: Builder, evolving: Builder, evolution: Builder
    ) -> None:
        strategy = evolution(evolving())
        strategy.start(federation(make_users(30)))
        check_planned(strategy, size=32)
        run = strategy.run
        asked = [line["query"] for line in releases(run.path)]
        assert asked == ["moments"] + ["nearest_neighbor_histogram"] * 3
        sketch = MomentSketch.load(run.path)
        distances = {int(n): value for n, value in run.state["summary"]["fred"].items()}
        assert sorted(distances) == [2, 3, 4]
        for number, value in distances.items():
            texts = survivors(run, counted=True, rounds=[number]).texts
            assert value == pytest.approx(sketch.frechet(HashEmbedder().embed(texts)), rel=1e-9)
        chosen = min(distances, key=lambda number: distances[number])
        assert run.state["summary"]["survivors_of_round"] == chosen
        table = pq.read_table(run.path / "rounds" / f"{chosen:04d}" / "population.parquet")
        alive = {row["id"] for row in table.to_pylist() if row["survived"]}
        parents = {
            parent for row in lines(run.path / "synthetic.jsonl") for parent in row["parent"]
        }
        assert parents
        assert parents <= alive

    def test_patience_ends_the_spending(
        self, federation: Builder, evolving: Builder, evolution: Builder
    ) -> None:
        grid = federation(make_users(30))
        strategy = evolution(evolving(survivor_patience=1, num_rounds=20))
        strategy.start(grid)
        charged = releases(strategy.run.path)
        assert 3 <= len(charged) < 20
        assert rounds_asked(grid) == list(range(1, len(charged) + 1))
        assert strategy.run.status == "finished"

    @pytest.mark.parametrize("output", ["expanded", "survivors"])
    def test_without_any_votes_there_is_no_result(
        self, federation: Builder, evolving: Builder, evolution: Builder, output: str
    ) -> None:
        few = {"num_rounds": 2, "min_users": 12, "output": output}
        strategy = evolution(evolving(**few))
        with pytest.raises(FederationError, match="no votes were released"):
            strategy.start(federation(tamper=silent(2)))
        assert strategy.run.status == "failed"
        assert not (strategy.run.path / "synthetic.jsonl").exists()
        again = evolution(evolving(**few, resume=True))
        again.start(federation())
        assert [line["query"] for line in releases(again.run.path)] == [
            "moments",
            "nearest_neighbor_histogram",
        ]
        assert again.run.status == "finished"

    def test_after_a_sketch_that_chooses_text(
        self, federation: Builder, evolving: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        long = tmp_path / "long.jsonl"
        rows = (f'{{"text": "{" ".join((WORDS[k % 25 :] + WORDS) * 2)}"}}' for k in range(60))
        long.write_text("\n".join(rows))
        # Of the two first questions the second is lost, and asked again.
        strategy = evolution(
            evolving(initial_text="selected", public_text=str(long), num_rounds=5, min_users=12)
        )
        strategy.start(federation(tamper=silent(2)))
        assert [(r["round"], r["query"]) for r in releases(strategy.run.path)] == [
            (1, "joint_sketch"),
            (3, "moments"),
            (4, "nearest_neighbor_histogram"),
            (5, "nearest_neighbor_histogram"),
        ]


class TestBadInput:
    @pytest.mark.parametrize(
        ("config", "changes", "named"),
        [
            (POPriConfig, {"checkpoint": "fred", "num_rounds": 1}, "mean and covariance, so"),
            (POPriConfig, {"patience": 2}, 'checkpoint = "sketch-mmd" or "fred", got'),
            (KernelSketchConfig, {"checkpoint": "fred"}, "checkpoint must be one of"),
            (
                KernelSketchConfig,
                {"checkpoint": "last", "patience": 2},
                'checkpoint = "sketch-mmd",',
            ),
            (
                PrivateEvolutionConfig,
                {"survivor_patience": 2},
                'survivor-patience = 2 needs survivors-of = "fred"',
            ),
            (
                PrivateEvolutionConfig,
                {"survivors_of": "fred", "num_rounds": 1},
                "at least 2, got 1",
            ),
            (PrivateEvolutionConfig, {"survivors_of": "last"}, 'one of "all", "fred"'),
            (
                PrivateEvolutionConfig,
                {"survivors_of": "fred", "num_rounds": 2, "initial_text": "selected"},
                "num-rounds must be at least 2, got 1",
            ),
        ],
    )
    def test_settings_are_named(self, config: Any, changes: Any, named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            config(epsilon=1.0, **changes)
