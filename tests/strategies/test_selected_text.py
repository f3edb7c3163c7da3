"""Methods that begin with what a joint sketch chooses, in one budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Message

from flower_privsyn import environment
from flower_privsyn.errors import ConfigError
from flower_privsyn.strategies import POPri, POPriConfig, PrivateEvolutionConfig
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words
from tests.support.federation import WORDS, asked, make_users, silent
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]

#: What users write about (`make_users`); all other words are of other topics.
COURTS = set(WORDS[:8])


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Public text of which a fifth is about courts."""
    monkeypatch.setenv(environment.CACHE, str(tmp_path / "rows"))
    drawn = np.random.default_rng(0)
    rows = []
    for number in range(100):
        words = WORDS[:8] if number % 5 == 0 else WORDS[8:]
        rows.append({"text": " ".join(drawn.choice(words, size=40))})
    file = tmp_path / "topics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture
def evolving(settings: Builder, topics: Path) -> Callable[..., PrivateEvolutionConfig]:
    def build(**changes: Any) -> PrivateEvolutionConfig:
        values = {"public_text": str(topics), "num_candidates": 16, "lookahead": 0, **changes}
        config: PrivateEvolutionConfig = settings(initial_text="selected", **values)
        return config

    return build


@pytest.fixture
def preferring(tmp_path: Path, topics: Path) -> Callable[..., POPri]:
    def build(**changes: Any) -> POPri:
        values: dict[str, Any] = {
            "noise_multiplier": 0.1,
            "num_rounds": 3,
            "num_nodes": 2,
            "num_prompts": 6,
            "responses_per_prompt": 4,
            "rejected_rank": 3,
            "num_features": 64,
            "public_text": str(topics),
            "initial_text": "selected",
            "synthetic_samples": 4,
            "run_dir": str(tmp_path / "run"),
            "node_timeout": 0.2,
            "accept_noise": True,
        }
        return POPri(
            POPriConfig(**{**values, **changes}),
            embedder=HashEmbedder(),
            generator=WordGenerator(WORDS),
            trainer=train_words,
        )

    return build


def share_about_courts(texts: list[str]) -> float:
    return sum(bool(COURTS & set(text.split()[:4])) for text in texts) / len(texts)


def population(run: Path, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        run / "rounds" / f"{number:04d}" / "population.parquet"
    ).to_pylist()
    return rows


class TestPrivateEvolution:
    def test_begins_with_what_the_first_release_chose(
        self, federation: Builder, evolving: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        grid = federation(make_users(100))
        strategy = evolution(evolving(epsilon=60.0))
        strategy.start(grid)
        run = tmp_path / "run"
        charged = releases(run)
        assert [(line["query"], line["l2_sensitivity"]) for line in charged] == [
            ("joint_sketch", 1.0),
            ("nearest_neighbor_histogram", 8.0),
            ("nearest_neighbor_histogram", 8.0),
        ]
        # One budget: every release has the same noise for its sensitivity.
        assert len({line["noise_multiplier"] for line in charged}) == 1
        assert 59.9 < charged[-1]["epsilon_release"] <= 60.0
        assert not (run / "rounds" / "0001" / "population.parquet").exists()
        first = population(run, 2)
        assert {row["source"] for row in first} == {"selected"}
        assert {row["id"].split(":")[0] for row in first} == {"2"}
        assert share_about_courts([row["text"] for row in first]) > 0.8
        chosen = lines(run / "rounds" / "0001" / "selected.jsonl")
        assert chosen == sorted(chosen, key=lambda row: -row["score"])
        assert len(lines(run / "synthetic.jsonl")) == 12
        kinds = [message.metadata.message_type for message in asked(grid)]
        assert [kind.removeprefix("query.") for kind in kinds[::2]] == [
            "joint_sketch",
            "nearest_neighbor_histogram",
            "nearest_neighbor_histogram",
        ]

    def test_a_lost_sketch_is_asked_for_again(
        self, federation: Builder, evolving: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            if "privsyn.answer" in reply.content:
                raise KeyboardInterrupt
            return [reply]

        config = {"noise_multiplier": 0.1}
        with pytest.raises(KeyboardInterrupt):
            evolution(evolving(**config)).start(federation(tamper=dying))
        evolution(evolving(**config, resume=True)).start(federation())
        run = tmp_path / "run"
        assert [(line["query"], line["interrupted"]) for line in releases(run)] == [
            ("joint_sketch", True),
            ("joint_sketch", False),
            ("nearest_neighbor_histogram", False),
        ]
        assert {row["source"] for row in population(run, 3)} == {"selected"}

    def test_votes_that_were_lost_leave_what_was_chosen(
        self, federation: Builder, evolving: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        strategy = evolution(evolving(noise_multiplier=0.1, min_users=12, num_rounds=2))
        strategy.start(federation(tamper=silent(2)))
        assert [line["query"] for line in releases(tmp_path / "run")] == ["joint_sketch"]
        written = lines(tmp_path / "run" / "synthetic.jsonl")
        assert len(written) == 12
        assert all(row["parent"][0].startswith("2:") for row in written)

    def test_a_run_that_is_killed_while_it_chooses_goes_on(
        self,
        federation: Builder,
        evolving: Builder,
        evolution: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from flower_privsyn.strategies.private_evolution import EvolutionByVotes

        def die(*_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

        strategy = evolution(evolving(noise_multiplier=0.1))
        with monkeypatch.context() as patched:
            patched.setattr(EvolutionByVotes, "_begin", die)
            with pytest.raises(KeyboardInterrupt):
                strategy.start(federation())
        run = tmp_path / "run"
        chosen = (run / "rounds" / "0001" / "selected.jsonl").read_text()
        evolution(evolving(noise_multiplier=0.1, resume=True)).start(federation())
        assert (run / "rounds" / "0001" / "selected.jsonl").read_text() == chosen
        assert [line["query"] for line in releases(run)] == [
            "joint_sketch",
            "nearest_neighbor_histogram",
            "nearest_neighbor_histogram",
        ]


class TestPOPri:
    def test_prompts_hold_what_the_first_release_chose(
        self, federation: Builder, preferring: Builder, tmp_path: Path
    ) -> None:
        preferring().start(federation())
        run = tmp_path / "run"
        assert [line["query"] for line in releases(run)] == [
            "joint_sketch",
            "mean_similarity",
            "mean_similarity",
        ]
        chosen = {row["text"] for row in lines(run / "rounds" / "0001" / "selected.jsonl")}
        rows = pq.read_table(run / "rounds" / "0002" / "candidates.parquet").to_pylist()
        assert all(parent.startswith("selected:") for row in rows for parent in row["parent"])
        assert len(chosen) == 100  # all there are: fewer than examples are drawn from at least
        assert lines(run / "synthetic.jsonl")

    def test_after_the_kernel_mean_too(
        self, federation: Builder, preferring: Builder, tmp_path: Path
    ) -> None:
        grid = federation(tamper=silent(2))
        preferring(checkpoint="sketch-mmd", num_rounds=4, min_users=12).start(grid)
        run = tmp_path / "run"
        # Of the two first questions the second was lost, and asked again.
        assert [(line["round"], line["query"]) for line in releases(run)] == [
            (1, "joint_sketch"),
            (3, "kernel_mean"),
            (4, "mean_similarity"),
        ]
        assert (run / "sketch.json").exists()


class TestRefusals:
    @pytest.mark.parametrize("changes", [{}, {"checkpoint": "sketch-mmd", "num_rounds": 2}])
    def test_no_round_is_left(self, changes: dict[str, Any], preferring: Builder) -> None:
        with pytest.raises(ConfigError, match="num-rounds must be at least"):
            preferring(**{"num_rounds": 1, **changes})

    def test_too_little_to_choose_from(
        self, federation: Builder, evolving: Builder, evolution: Builder, public_file: Path
    ) -> None:
        grid = federation()
        with pytest.raises(ConfigError, match="needs 16 rows of at least 32 tokens .* has 0"):
            evolution(evolving(public_text=str(public_file))).start(grid)
        assert not asked(grid)
