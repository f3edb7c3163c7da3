"""Private evolution end to end in one process, on real Flower messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flower_privsyn.data.sentences import is_whole
from flower_privsyn.errors import GenerationError, PrivsynError
from flower_privsyn.privacy import FullParticipation
from flower_privsyn.strategies import PrivateEvolution, ReleasedSum
from flower_privsyn.strategies._population import Population
from flower_privsyn.testing import EchoGenerator, HashEmbedder
from tests.support.federation import is_rehearsal, make_users
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


class TestWholeRun:
    def test_writes_the_run_directory(
        self, federation: Builder, settings: Builder, evolution: Builder
    ) -> None:
        config = settings(epsilon=5.0)
        strategy = evolution(config)
        result = strategy.start(federation())
        run = strategy.run.path
        assert strategy.run.status == "finished"
        assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
        charged = releases(run)
        assert [line["round"] for line in charged] == [1, 2, 3]
        assert charged[-1]["epsilon_release"] <= 5.0
        assert charged[-1]["epsilon_release"] == pytest.approx(5.0, rel=1e-3)
        assert charged[-1]["num_users"] == 12
        assert charged[-1]["l2_sensitivity"] == 8.0
        synthetic = lines(run / "synthetic.jsonl")
        assert len(synthetic) == 12
        assert {tuple(sorted(row)) for row in synthetic} == {("parent", "round", "source", "text")}
        assert pq.read_table(run / "synthetic.parquet").num_rows == 12
        for number in (1, 2, 3):
            folder = run / "rounds" / f"{number:04d}"
            assert sorted(path.name for path in folder.iterdir()) == [
                "population.parquet",
                "release.npy",
                "state.json",
            ]
        metrics = lines(run / "metrics.jsonl")
        assert [row["answers"] for row in metrics] == [2, 2, 2]
        # Parents are survivors of earlier rounds.
        survivors: set[str] = set()
        for number in (1, 2, 3):
            table = pq.read_table(
                run / "rounds" / f"{number:04d}" / "population.parquet"
            ).to_pylist()
            assert sum(row["survived"] for row in table) == 16
            if number > 1:
                assert {parent for row in table for parent in row["parent"]} <= survivors
            survivors |= {row["id"] for row in table if row["survived"]}
        for row in synthetic:
            assert row["source"] == "expanded"
            assert set(row["parent"]) <= survivors
            assert 1 <= len(row["parent"]) <= 3

    def test_survivors_move_towards_the_users(
        self, federation: Builder, settings: Builder, evolution: Builder
    ) -> None:
        users = make_users(200)
        strategy = evolution(settings(epsilon=20.0, num_rounds=3))
        strategy.start(federation(users))
        embedder = HashEmbedder()
        private = embedder.embed(users.texts)

        def similarity(number: int, *, survivors: bool) -> float:
            table = pq.read_table(
                strategy.run.path / "rounds" / f"{number:04d}" / "population.parquet"
            ).to_pylist()
            kept = [row["text"] for row in table if row["survived"] or not survivors]
            return float((embedder.embed(kept) @ private.T).mean())

        assert similarity(3, survivors=True) > similarity(1, survivors=False) + 0.1


class TestWholeSentences:
    """What stands in a population of prose: see `public_texts` and `ByInstruction`."""

    def test_candidates_are_whole_sentences(
        self, federation: Builder, settings: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        class Rambling(EchoGenerator):
            """Answers with a sentence and the beginning of another, or without any end."""

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                ends = [" And then", " and so on"]
                said = [f"The court of number {place} sat." for place in range(len(prompts))]
                return [[text + ends[0] if n % 2 else ends[1]] for n, text in enumerate(said)]

        public = tmp_path / "sentences.jsonl"
        texts = [f"A river runs through valley number {n} to the sea." for n in range(40)]
        texts += [f"in the middle of something {n}" for n in range(20)]
        public.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        config = settings(public_text=str(public), num_rounds=3, synthetic_samples=0)
        strategy = evolution(config, variation=None, generator=Rambling())
        strategy.start(federation())
        # Nothing is expanded: the survivors are the result.
        assert {row["source"] for row in lines(strategy.run.synthetic_jsonl)} == {"survivor"}
        kept = [
            pq.read_table(strategy.run.path / "rounds" / f"{n:04d}" / "population.parquet")
            .column("text")
            .to_pylist()
            for n in (1, 2, 3)
        ]
        assert all(is_whole(text) for texts in kept for text in texts)
        assert any(text.startswith("The court") for text in kept[1])


class TestExpansionThatFails:
    def test_a_generator_that_falls_silent_ends_no_run(
        self,
        federation: Builder,
        settings: Builder,
        evolution: Builder,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        class Silent(EchoGenerator):
            """Writes nothing but the text of one prompt."""

            speaks = False

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                written = super().generate(prompts, **kwargs)
                if is_rehearsal(prompts):
                    return written
                spoken, self.speaks = self.speaks, False
                return [row if spoken and not place else [" "] for place, row in enumerate(written)]

        values = {"synthetic_samples": 10, "num_rounds": 1}
        strategy = evolution(settings(**values), generator=Silent())
        said = r"the generator echo was asked for 10 texts and wrote none .*\(dropped: 40 empty\)"
        with pytest.raises(GenerationError, match=said):
            strategy.start(federation())
        assert strategy.run.status == "failed"
        assert not strategy.run.synthetic_jsonl.exists()
        barely = Silent()
        barely.speaks = True
        again = evolution(settings(**values, resume=True), generator=barely)
        again.start(federation())
        assert again.run.status == "finished"
        assert len(lines(again.run.synthetic_jsonl)) == 1
        assert "was asked for 10 texts, and 1 could be kept (dropped: 39 empty)" in caplog.text
        assert len(releases(again.run.path)) == 1


class TestSurvivors:
    @staticmethod
    def survivors(strategy: Any, values: Any) -> Any:
        population = Population.create(["a"] * len(values), round_number=1, source="public")
        release = ReleasedSum(
            round_number=1,
            values=np.array(values),
            noise_std=1.0,
            num_users=3,
            sampling=FullParticipation(3),
        )
        return strategy.method._survivors(population, release)

    def test_are_drawn_in_proportion_to_the_votes_above_the_threshold(
        self, evolution: Builder, settings: Builder
    ) -> None:
        votes = np.array([0.0, 8.0, 3.0, 8.0, -4.0])  # above the threshold of 1
        counts = self.survivors(evolution(settings()), np.tile(votes + 1.0, 2000))
        assert counts.sum() == 10_000
        shares = counts.reshape(-1, 5).sum(axis=0) / 10_000
        assert np.allclose(shares, np.maximum(votes, 0) / 19, atol=0.02)

    @pytest.mark.parametrize("values", [[0.0] * 16, [-5.0] * 16, [1.0] * 16])
    def test_all_below_the_threshold_keeps_the_population(
        self, evolution: Builder, settings: Builder, values: list[float]
    ) -> None:
        assert self.survivors(evolution(settings()), values).tolist() == [1] * 16


def test_the_papers_settings() -> None:
    ours = PrivateEvolution(epsilon=1.29).config
    assert (ours.num_rounds, ours.max_samples, ours.max_tokens, ours.delta) == (11, 8, 64, 3e-6)
    assert (ours.num_candidates, ours.max_new_tokens) == (1024, 85)


class TestBeforeSpending:
    @pytest.mark.parametrize(
        ("changes", "parts", "named"),
        [
            ({"num_users": 20}, {}, "12 users.*20 were planned.*nothing was spent"),
            ({"num_nodes": 3}, {}, r"2 nodes are connected.*3 were planned"),
            ({}, {"embedder": HashEmbedder(dimension=64)}, "another model"),
            ({"num_candidates": 100}, {}, "num-candidates = 100 needs at least 100 different"),
            (
                {"variation": "mask-fill", "variation_model": "/nowhere/mlm"},
                {"variation": None},
                "/nowhere/mlm",
            ),
            ({"variation": "no-such-prompt"}, {"variation": None}, "no-such-prompt"),
            ({"embedding_model": "/nowhere/embedder"}, {"embedder": None}, "/nowhere/embedder"),
            ({"prompt": "no-such-prompt"}, {}, "no-such-prompt"),
        ],
    )
    def test_what_the_run_cannot_do(
        self,
        federation: Builder,
        settings: Builder,
        evolution: Builder,
        changes: dict[str, Any],
        parts: dict[str, Any],
        named: str,
    ) -> None:
        strategy = evolution(settings(**changes), **parts)
        with pytest.raises(PrivsynError, match=named):
            strategy.start(federation())
        assert not (strategy.run.path / "ledger.jsonl").exists()
        assert strategy.run.status == "failed"
