"""Pairs from scores, and candidates from responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_privsyn.errors import ConfigError, GenerationError
from flower_privsyn.generation import OpenAIGenerator, load_prompt
from flower_privsyn.progress import Progress
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.method import RunContext, State
from flower_privsyn.strategies import POPriConfig
from flower_privsyn.strategies._responses import Responses, rank_pairs
from flower_privsyn.strategies.popri import PreferencesByScores
from flower_privsyn.testing import HashEmbedder
from tests.support.generation_server import Server
from tests.support.words import train_words

END = "\nOriginal Text Sample 5"


class TestRankPairs:
    def test_hand_built_case_with_ties_and_duplicates(self) -> None:
        # prompt 7: scores tie at the top (index 1 before 4) and at the rejected rank.
        # prompt 2: fewer responses than the rejected rank: the last one.
        # prompt 5: one response.  prompt 9: best and third-best are the same text.
        group = np.array([2, 7, 9, 7, 7, 5, 9, 7, 2, 9])
        scores = np.array([0.1, 3.0, 2.0, 1.0, 3.0, 8.0, 1.0, 1.0, 0.4, 0.5])
        texts = ["a", "b", "same", "c", "d", "e", "f", "g", "h", "same"]
        assert rank_pairs(scores, group, texts, rejected_rank=3) == (
            [8, 1],
            [0, 3],
            {"one-response": 1, "equal-text": 1},
        )

    @given(
        st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2)), min_size=1, max_size=30),
        st.integers(2, 6),
    )
    def test_equals_sorting_each_prompt(self, rows: list[tuple[int, int]], rank: int) -> None:
        group = np.array([prompt for prompt, _ in rows])
        scores = np.array([float(score) for _, score in rows])
        texts = [f"text {index}" for index in range(len(rows))]
        expected = []
        for prompt in sorted(set(group.tolist())):
            members = [index for index in range(len(rows)) if group[index] == prompt]
            members.sort(key=lambda index: (-scores[index], index))
            if len(members) > 1:
                expected.append((members[0], members[min(rank, len(members)) - 1]))
        chosen, rejected, dropped = rank_pairs(scores, group, texts, rejected_rank=rank)
        assert list(zip(chosen, rejected, strict=True)) == expected
        assert dropped["one-response"] + len(expected) == len(set(group.tolist()))


class Scripted:
    """Responses as given, in order, to every prompt alike."""

    name = "scripted"

    def __init__(self, responses: Sequence[str]) -> None:
        self.responses = list(responses)
        self.asked: list[str] = []
        self.seeds: list[int] = []
        self.adapters: list[Path | None] = []

    def generate(
        self,
        prompts: Sequence[str],
        *,
        num_samples: int = 1,
        sampling: Any,
        adapter: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[list[str]]:
        self.asked += prompts
        self.seeds.append(sampling.seed)
        self.adapters.append(adapter)
        assert sampling.stop == ("\nOriginal Text Sample ",)
        return [self.responses[:num_samples] for _ in prompts]


SEEDS = tuple(f"public sample number {index}" for index in range(20))


def rounds(root: Path, writer: Any, **changes: Any) -> PreferencesByScores:
    """The method, set up but for the models that it would load and try."""
    values: dict[str, Any] = {
        "epsilon": 1.0,
        "num_prompts": 3,
        "responses_per_prompt": 6,
        "max_tokens": 5,
        "rejected_rank": 2,
        "public_text": "bundled[:20]",  # in whose place stand those above
        **changes,
    }
    path = root / "run"
    run = RunDirectory.open(path) if path.exists() else RunDirectory.create(path, config={})
    run.unlock()
    config, embedder = POPriConfig(**values), HashEmbedder()
    made = PreferencesByScores(config, embedder=embedder, trainer=train_words)
    made.place = RunContext(run=run, progress=Progress(), released=lambda _: None)  # type: ignore[arg-type]
    made._responses = Responses(config, tokenizer=embedder.tokenizer, generator=writer)
    made._responses.samples = SEEDS
    return made


def written(made: PreferencesByScores, number: int = 1, *, by: int = 0) -> State:
    """The state with the candidates of a round, by the adapter of another."""
    folder = made.run.round_dir(number) / "scratch"
    folder.mkdir(exist_ok=True)
    state = {"adapter": by, "learned": [], "pairs": 0, "distances": {}}
    return made._written(state, number, folder)


class TestCandidates:
    def test_unusable_responses_are_left_out_and_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="flwr.privsyn")
        generator = Scripted(
            [" one two ", "\n \n", "one  two", "broken \ufffd word", "a b c d e f g", "three\nfour"]
        )
        candidates = written(rounds(tmp_path, generator))
        assert candidates["texts"][:3] == ["one two", "a b c d e", "three\nfour"]
        assert candidates["group"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert candidates["ids"][3] == "1:3"
        assert "9 of 18 responses" in caplog.text
        for reason in ("3 empty", "3 duplicate", "3 broken-character"):
            assert reason in caplog.text

    def test_a_copy_of_an_example_is_left_out_of_its_own_prompt_alone(self, tmp_path: Path) -> None:
        made = rounds(tmp_path, Scripted([SEEDS[0], "new"]), num_prompts=40, responses_per_prompt=2)
        candidates = written(made)
        held = {
            int(group)
            for group, text in zip(candidates["group"], candidates["texts"], strict=True)
            if text == SEEDS[0]
        }
        with_it = {
            int(group)
            for group, parents in zip(candidates["group"], candidates["parents"], strict=True)
            if "public:0" in parents
        }
        assert with_it
        assert held == set(range(40)) - with_it

    def test_the_end_of_a_cut_text_is_no_end(self, tmp_path: Path) -> None:
        generator = Scripted(["short text", "one two three four five six", "x"])
        candidates = written(rounds(tmp_path, generator, responses_per_prompt=3))
        assert candidates["ends"][:3] == [END, "", END]
        assert candidates["prompts"][0].endswith("\nOriginal Text Sample 4\n")
        # What was generated after the prompt is what the prompt would hold for a longer list.
        document = load_prompt("pre-text").render(["a", "b", "c", "short text"])
        shorter = load_prompt("pre-text").render(["a", "b", "c"])
        assert document == shorter + "short text" + END + "\n"

    def test_prompts_hold_three_different_samples_and_differ(self, tmp_path: Path) -> None:
        generator = Scripted(["x", "y"])
        made = rounds(tmp_path, generator, num_prompts=60, responses_per_prompt=2)
        candidates = written(made)
        assert len(set(generator.asked)) == 60
        assert all(len(set(parents)) == 3 for parents in candidates["parents"])
        written(rounds(tmp_path / "other", again := Scripted(["x", "y"]), num_prompts=60), 2)
        assert len(set(generator.asked) & set(again.asked)) < 10  # another round, other prompts

    def test_nothing_usable_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(GenerationError, match="round 1: none of the responses to 3 prompts"):
            written(rounds(tmp_path, Scripted([" "] * 6)))
        # A run that is resumed does not end at the same responses again.
        assert len(written(rounds(tmp_path, Scripted(list("abcdef"))))["texts"]) == 18

    def test_prompts_that_a_server_refuses_have_no_candidates(
        self, tmp_path: Path, server: Server
    ) -> None:
        def filtered(path: str, body: dict[str, Any], number: int) -> Any:
            refused = "number 7\n" in body["prompt"]
            return (400, {"error": "content filter"}) if refused else None

        server.misbehave = filtered
        writer = OpenAIGenerator(server.url, "tiny", max_retries=0)
        made = rounds(tmp_path, writer, num_prompts=20, responses_per_prompt=2)
        candidates = written(made)
        asked = {body["prompt"] for _, body, _ in server.requests}
        assert len(asked) == 20
        assert {p for p in asked if "number 7\n" not in p} == set(candidates["prompts"]) < asked


class TestLearning:
    def test_pairs_adapters_and_record(self, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        generator = Scripted(["good text", "plain text", "bad text", "worse text"])
        made = rounds(tmp_path, generator, responses_per_prompt=4, rejected_rank=3)
        candidates = written(made)
        scores = np.tile([2.0, 1.0, 0.5, -1.0], 3)
        record = made._learn(1, candidates, scores)
        assert record["pairs"] == 3
        folder = tmp_path / "run/rounds/0001"
        table = pq.read_table(folder / "candidates.parquet").to_pylist()
        assert [row["chosen"] for row in table] == [True, False, False, False] * 3
        assert [row["rejected"] for row in table] == [False, False, True, False] * 3
        assert [row["score"] for row in table] == scores.tolist()
        assert [row["prompt"] for row in table] == candidates["group"].tolist()
        weights = json.loads((folder / "adapter" / "adapter_config.json").read_text())
        assert weights == {"bad": -1.0, "good": 1.0, "text": 0.0}
        written(made, 2, by=1)
        assert generator.adapters == [None, folder / "adapter"]

    def test_without_a_pair_the_generator_stays(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = rounds(tmp_path, Scripted(["only", "only"]), responses_per_prompt=2)
        record = made._learn(1, written(made), np.zeros(3))
        assert (record["pairs"], record["dropped"]["one-response"]) == (0, 3)
        assert not (tmp_path / "run/rounds/0001/adapter").exists()
        assert "no prompt gave a pair" in caplog.text

    def test_settings_and_ends_reach_the_training(self, tmp_path: Path) -> None:
        seen: dict[str, Any] = {}

        def trainer(model: Any, pairs: Any, **kwargs: Any) -> Any:
            seen.update(kwargs, model=model, pairs=list(pairs))
            return train_words(model, pairs, **kwargs)

        told = {"loss": "ipo", "beta": 0.5, "training_epochs": 4}
        writer = Scripted(["good text", "a b c d e f"])
        made = rounds(tmp_path, writer, responses_per_prompt=2, generator="some/model", **told)
        made._trainer = trainer
        made._learn(1, written(made), np.tile([1.0, 0.0], 3))
        assert {key: getattr(seen["settings"], key) for key in told} == told
        assert seen["model"] == "some/model"
        pair = seen["pairs"][0]
        assert (pair.chosen, pair.rejected) == ("good text" + END, "a b c d e")


def test_too_little_public_text(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text('{"text": "one two three four"}\n{"text": "five six seven eight"}\n')
    config = POPriConfig(epsilon=1.0, public_text=str(few))
    with pytest.raises(ConfigError, match=r'public-text = ".*few.jsonl" holds 2$'):
        Responses(config, tokenizer=HashEmbedder().tokenizer, generator=Scripted([]))
