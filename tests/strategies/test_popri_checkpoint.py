"""Which round of POPri writes, and when its rounds end, by a released judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flower_privsyn.privacy import (
    FullParticipation,
)
from flower_privsyn.privacy.budget import budget_report
from flower_privsyn.strategies import POPriConfig, Sketch
from flower_privsyn.strategies.parts.candidates import Candidates
from flower_privsyn.testing import WordGenerator, train_words
from tests.support.federation import WORDS, is_rehearsal, make_users
from tests.support.methods import learning_nothing
from tests.support.popri import popri, small_popri
from tests.support.probe import Killed
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., POPriConfig]:
    """Settings of a small run; keyword arguments replace them."""
    return small_popri(tmp_path / "run", public_file)


class TestCheckpointByTheReleasedSketch:
    def test_the_sketch_is_the_first_of_the_releases(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = popri(
            config(checkpoint="sketch-mmd", num_rounds=4, epsilon=6.0, num_features=64)
        )
        strategy.start(federation())
        run = strategy.run.path
        charged = releases(run)
        assert [line["query"] for line in charged] == ["kernel_mean"] + ["mean_similarity"] * 3
        # What `privsyn budget --rounds 4` says is what was used.
        report = budget_report(epsilon=6.0, delta=3e-6, rounds=4, sampling=FullParticipation(12))
        assert {line["noise_multiplier"] for line in charged} == {charged[0]["noise_multiplier"]}
        assert charged[0]["noise_multiplier"] == pytest.approx(
            report["noise_multiplier"]["pld"], rel=1e-6
        )
        assert charged[-1]["epsilon_release"] == pytest.approx(6.0, rel=1e-3)
        assert charged[-1]["epsilon_release"] <= 6.0
        assert not (run / "rounds" / "0001" / "candidates.parquet").exists()

        sketch = Sketch.load(run)
        assert np.array_equal(sketch.total, np.load(run / "rounds" / "0001" / "release.npy"))
        assert sketch.num_users == 12
        summary = strategy.run.state["summary"]
        distances = {int(n): value for n, value in summary["squared_mmd"].items()}
        assert sorted(distances) == [2, 3, 4, 5]
        for number, value in distances.items():
            stored = Candidates.from_parquet(
                run / "rounds" / f"{number:04d}" / "candidates.parquet"
            )
            assert value == pytest.approx(sketch.squared_mmd(stored.embeddings), rel=1e-9)
        writer = min(distances, key=lambda number: distances[number])
        assert summary["writer"] == f"the adapter that wrote in round {writer}"
        assert {row["round"] for row in lines(run / "synthetic.jsonl")} == {writer}

    def test_takes_the_best_round_not_the_last(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        calls = []

        def spoiling(model: Any, pairs: Any, **kwargs: Any) -> Any:
            # From the third training on the generator is pushed away from what users prefer.
            calls.append(1)
            if len(calls) >= 3:
                report = train_words(model, pairs, **kwargs)
                file = kwargs["output"] / "adapter_config.json"
                weights = json.loads(file.read_text())
                file.write_text(json.dumps({word: -4 * value for word, value in weights.items()}))
                return report
            return train_words(model, pairs, **kwargs)

        strategy = popri(
            config(
                checkpoint="sketch-mmd",
                num_rounds=5,
                noise_multiplier=0.0,
                num_prompts=16,
                num_features=512,
            ),
            trainer=spoiling,
        )
        strategy.start(federation(make_users(50)))
        summary = strategy.run.state["summary"]
        assert summary["writer"] == "the adapter that wrote in round 4"
        distances = summary["squared_mmd"]
        assert distances["4"] < distances["2"]
        assert distances["4"] < distances["5"]

    def test_a_lost_sketch_is_asked_for_again(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            if "privsyn.answer" in reply.content:
                raise Killed
            return [reply]

        values = {"checkpoint": "sketch-mmd", "num_features": 64, "num_rounds": 4}
        with pytest.raises(Killed):
            popri(config(**values)).start(federation(tamper=dying))
        strategy = popri(config(**values, resume=True))
        strategy.start(federation())
        assert [(r["query"], r["interrupted"]) for r in releases(tmp_path / "run")] == [
            ("kernel_mean", True),
            ("kernel_mean", False),
            ("mean_similarity", False),
            ("mean_similarity", False),
        ]
        assert sorted(strategy.run.state["summary"]["squared_mmd"]) == ["3", "4", "5"]

    def test_a_discarded_sketch_is_asked_for_again_in_the_same_run(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        def losing(request: Message, reply: Message) -> list[Message]:
            number = request.content["privsyn.request"].get("round")
            return [] if number == 1 and request.metadata.dst_node_id == 1 else [reply]

        strategy = popri(
            config(checkpoint="sketch-mmd", num_features=64, num_rounds=3, min_users=12)
        )
        strategy.start(federation(tamper=losing))
        assert [r["query"] for r in releases(tmp_path / "run")] == [
            "kernel_mean",
            "mean_similarity",
        ]

    def test_users_who_did_not_answer_are_not_counted(
        self, federation: Builder, config: Builder
    ) -> None:
        def losing(request: Message, reply: Message) -> list[Message]:
            first = request.content["privsyn.request"].get("round") == 1
            return [] if first and request.metadata.dst_node_id == 1 else [reply]

        strategy = popri(config(checkpoint="sketch-mmd", num_features=64, num_rounds=2))
        strategy.start(federation(tamper=losing))
        assert Sketch.load(strategy.run.path).num_users == 6.0

    def test_under_poisson_sampling_the_expected_users_count(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = popri(
            config(
                checkpoint="sketch-mmd",
                num_features=64,
                num_rounds=2,
                sampling="poisson",
                sampling_rate=0.5,
                noise_multiplier=1.0,
                accountant="rdp",
            )
        )
        strategy.start(federation())
        assert Sketch.load(strategy.run.path).num_users == 6.0


class TestPatience:
    def test_ends_the_run_and_the_spending(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        values = {
            "checkpoint": "sketch-mmd",
            "patience": 2,
            "num_rounds": 20,
            "epsilon": 5.0,
            "num_features": 128,
        }
        grid = federation()
        strategy = popri(config(**values), trainer=learning_nothing)
        seen: list[int] = []
        strategy.start(grid, evaluate_fn=lambda number, _: seen.append(number))
        charged = releases(tmp_path / "run")
        assert seen == list(range(len(charged) + 1))
        assert 3 <= len(charged) < 20
        assert charged[-1]["epsilon_release"] < 4.5
        assert strategy.run.status == "finished"
        asked = {
            m.content["privsyn.request"].get("round")
            for m in grid.requests
            if m.metadata.message_type != "query.prepare"
        }
        assert asked == set(range(1, len(charged) + 1))
        assert len(lines(tmp_path / "run" / "metrics.jsonl")) == len(charged)

    def test_a_run_that_ended_early_asks_nothing_when_resumed(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        values = {
            "checkpoint": "sketch-mmd",
            "patience": 1,
            "num_rounds": 20,
            "num_features": 128,
            "synthetic_samples": 100,
        }

        class Dying(WordGenerator):
            dying = False

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                tried = is_rehearsal(prompts, kwargs["sampling"])
                if kwargs.get("num_samples", 1) == 1 and self.dying and not tried:
                    raise Killed
                return super().generate(prompts, **kwargs)

        generator = Dying(WORDS)
        generator.dying = True
        with pytest.raises(Killed):
            popri(config(**values), trainer=learning_nothing, generator=generator).start(
                federation()
            )
        before = releases(tmp_path / "run")
        assert len(before) < 20
        grid = federation()
        popri(config(**values, resume=True), trainer=learning_nothing).start(grid)
        assert releases(tmp_path / "run") == before
        assert not [m for m in grid.requests if m.metadata.message_type != "query.prepare"]
