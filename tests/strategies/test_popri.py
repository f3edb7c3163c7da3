"""POPri end to end in one process, on real Flower messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Message

from flower_privsyn.errors import ConfigError, GenerationError, PrivsynError, TrainingError
from flower_privsyn.generation import SamplingParameters
from flower_privsyn.privacy import (
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    Sampling,
)
from flower_privsyn.privacy.accounting import Release, accountant
from flower_privsyn.privacy.budget import budget_report
from flower_privsyn.queries import expand_scores
from flower_privsyn.strategies import POPri, POPriConfig, Sketch
from flower_privsyn.strategies.parts.candidates import Candidates
from flower_privsyn.strategies.popri import PRINTED_NOISE_MULTIPLIERS
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words
from tests.support.answering import read_answer
from tests.support.federation import WORDS, is_rehearsal, make_users
from tests.support.methods import learning_nothing
from tests.support.probe import Killed
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]
REFERENCE = Path(__file__).parents[1] / "data" / "noise_reference.json"


def table(run: Path, number: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(
        run / "rounds" / f"{number:04d}" / "candidates.parquet"
    ).to_pylist()
    return rows


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., POPriConfig]:
    """Settings of a small run; keyword arguments replace them."""

    def build(**changes: Any) -> POPriConfig:
        values: dict[str, Any] = {
            "num_rounds": 3,
            "num_nodes": 2,
            "num_prompts": 8,
            "responses_per_prompt": 5,
            "rejected_rank": 4,
            "public_text": str(public_file),
            "synthetic_samples": 20,
            "run_dir": str(tmp_path / "run"),
            "node_timeout": 0.2,
            "accept_noise": True,
            **changes,
        }
        if "epsilon" not in values and "noise_multiplier" not in values:
            values["epsilon"] = 8.0
        return POPriConfig(**values)

    return build


def popri(config: POPriConfig, **parts: Any) -> POPri:
    """The strategy with fakes in place of models."""
    return POPri(
        config,
        embedder=parts.pop("embedder", HashEmbedder()),
        generator=parts.pop("generator", WordGenerator(WORDS)),
        trainer=parts.pop("trainer", train_words),
        **parts,
    )


class TestWholeRun:
    def test_writes_the_run_directory(self, federation: Builder, config: Builder) -> None:
        strategy = popri(config(epsilon=5.0))
        result = strategy.start(federation())
        run = strategy.run.path
        assert strategy.run.status == "finished"
        assert sorted(result.train_metrics_clientapp) == [1, 2, 3]
        charged = releases(run)
        assert [line["round"] for line in charged] == [1, 2, 3]
        assert {line["query"] for line in charged} == {"mean_similarity"}
        assert {line["l2_sensitivity"] for line in charged} == {1.0}
        assert charged[-1]["epsilon_release"] == pytest.approx(5.0, rel=1e-3)
        assert charged[-1]["epsilon_release"] <= 5.0
        synthetic = lines(run / "synthetic.jsonl")
        assert len(synthetic) == 20
        assert {tuple(sorted(row)) for row in synthetic} == {("parent", "round", "source", "text")}
        assert {row["source"] for row in synthetic} == {"generated"}
        assert {row["round"] for row in synthetic} == {4}
        assert all(parent.startswith("public:") for row in synthetic for parent in row["parent"])
        for number in (1, 2, 3):
            folder = run / "rounds" / f"{number:04d}"
            assert sorted(path.name for path in folder.iterdir()) == [
                "adapter",
                "candidates.parquet",
                "release.npy",
                "state.json",
                "training.json",
            ]
        summary = strategy.run.state["summary"]
        assert summary["rounds_learned"] == [1, 2, 3]
        assert summary["writer"] == "the adapter that wrote in round 4"

    def test_messages_hold_candidates_and_prompts_or_their_root_alone(
        self, federation: Builder, config: Builder
    ) -> None:
        for space, centre, names, numbers in (
            ("candidates", "prompt", {"candidates", "prompt"}, None),
            ("candidates", "all", {"candidates"}, None),
            ("span", "prompt", {"root"}, 32),  # one per dimension
        ):
            grid = federation()
            folder = config().run_dir + space + centre
            strategy = popri(config(centre=centre, answer_space=space, run_dir=folder))
            strategy.start(grid)
            asked = [m for m in grid.requests if m.metadata.message_type == "query.mean_similarity"]
            assert len(asked) == 6
            sent = asked[-1].content["privsyn.broadcast"]
            assert set(sent) == names
            stored = Candidates.from_parquet(
                strategy.run.path / "rounds" / "0003" / "candidates.parquet"
            )
            if space == "candidates":
                assert np.array_equal(sent["candidates"].numpy(), stored.embeddings)
            else:
                root = strategy.config.similarity().broadcast(
                    stored.embeddings, prompt=stored.group
                )
                assert np.array_equal(sent["root"].numpy(), root["root"])
            answers = [
                read_answer(reply).total
                for reply in grid.replies
                if "privsyn.answer" in reply.content
            ]
            assert {len(answer) for answer in answers[-2:]} == {numbers or len(stored)}

    @pytest.mark.parametrize("answer_space", ["span", "candidates"])
    def test_the_generator_moves_towards_the_users(
        self, federation: Builder, config: Builder, answer_space: str
    ) -> None:
        users = make_users(300)
        strategy = popri(
            config(epsilon=8.0, num_rounds=5, num_prompts=16, answer_space=answer_space)
        )
        strategy.start(federation(users))
        private = HashEmbedder().embed(users.texts)

        def similarity(number: int) -> float:
            stored = Candidates.from_parquet(
                strategy.run.path / "rounds" / f"{number:04d}" / "candidates.parquet"
            )
            return float((stored.embeddings @ private.T).mean())

        assert similarity(5) > similarity(1) + 0.15
        written = [row["text"] for row in lines(strategy.run.synthetic_jsonl)]
        assert float((HashEmbedder().embed(written) @ private.T).mean()) > similarity(1) + 0.15

    def test_loss_sft_is_an_option(self, federation: Builder, config: Builder) -> None:
        strategy = popri(config(loss="sft", num_rounds=2))
        strategy.start(federation())
        assert strategy.run.status == "finished"

    def test_the_same_seed_gives_the_same_first_candidates_and_others_later(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        texts = []
        for name, seed in (("a", 3), ("b", 3), ("c", 4)):
            strategy = popri(config(run_dir=str(tmp_path / name), seed=seed, num_rounds=2))
            strategy.start(federation())
            texts.append([[row["text"] for row in table(tmp_path / name, n)] for n in (1, 2)])
        assert texts[0][0] == texts[1][0]
        assert texts[0][0] != texts[2][0]
        assert texts[0][0] != texts[0][1]


def authors_scores(embeddings: np.ndarray, users: list[np.ndarray]) -> np.ndarray:
    """Scores as the authors' code has them: cosines summed, standardised, scaled to norm 1."""
    total = np.zeros(len(embeddings))
    candidates = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for records in users:
        cosines = candidates @ (records / np.linalg.norm(records, axis=1, keepdims=True)).T
        summed = cosines.sum(axis=1)
        standard = (summed - summed.mean()) / summed.std()
        total += standard / max(1.0, float(np.linalg.norm(standard)))
    return total


def printed_scores(embeddings: np.ndarray, users: list[np.ndarray]) -> np.ndarray:
    """Scores as printed: mean cosines, clipped to norm 1."""
    total = np.zeros(len(embeddings))
    candidates = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    for records in users:
        cosines = candidates @ (records / np.linalg.norm(records, axis=1, keepdims=True)).T
        mean = cosines.mean(axis=1)
        total += mean / max(1.0, float(np.linalg.norm(mean)))
    return total


class TestScoresAtZeroNoise:
    def run(
        self, federation: Builder, config: Builder, **changes: Any
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        users = make_users(9, samples=4)
        strategy = popri(config(noise_multiplier=0.0, num_rounds=1, **changes))
        strategy.start(federation(users))
        records = HashEmbedder().embed(users.texts).astype(np.float64)
        by_user = [records[users.owners == user] for user in range(9)]
        stored = Candidates.from_parquet(
            strategy.run.path / "rounds" / "0001" / "candidates.parquet"
        )
        scores = np.array([row["score"] for row in table(strategy.run.path, 1)])
        assert releases(strategy.run.path)[0]["private"] is False
        return scores, stored.embeddings.astype(np.float64), by_user

    @pytest.mark.parametrize("answer_space", ["candidates", "span"])
    def test_equal_the_authors_formula(
        self, federation: Builder, config: Builder, answer_space: str
    ) -> None:
        scores, embeddings, users = self.run(
            federation, config, centre="all", scale="unit", answer_space=answer_space
        )
        expected = authors_scores(embeddings, users)
        assert np.abs(scores - expected).max() < 1e-5 * np.abs(expected).max()

    @pytest.mark.parametrize("answer_space", ["candidates", "span"])
    def test_equal_the_printed_formula(
        self, federation: Builder, config: Builder, answer_space: str
    ) -> None:
        scores, embeddings, users = self.run(
            federation, config, centre="none", answer_space=answer_space
        )
        expected = printed_scores(embeddings, users)
        assert np.abs(scores - expected).max() < 1e-5 * np.abs(expected).max()

    @pytest.mark.parametrize("answer_space", ["candidates", "span"])
    def test_ours_are_centred_over_the_prompt_that_was_answered(
        self, federation: Builder, config: Builder, answer_space: str
    ) -> None:
        scores, embeddings, users = self.run(federation, config, answer_space=answer_space)
        candidates = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        group = np.array([row["prompt"] for row in table(Path(config().run_dir), 1)])
        expected = np.zeros(len(candidates))
        for records in users:
            unit = records / np.linalg.norm(records, axis=1, keepdims=True)
            mean = (candidates @ unit.T).mean(axis=1)
            for prompt in set(group.tolist()):
                mean[group == prompt] -= mean[group == prompt].mean()
            expected += mean / max(1.0, float(np.linalg.norm(mean)))
        assert np.abs(scores - expected).max() < 1e-5 * np.abs(expected).max()

    def test_projecting_changes_nothing_without_noise(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        plain, *_ = self.run(
            federation, config, answer_space="candidates", run_dir=str(tmp_path / "plain")
        )
        projected, *_ = self.run(
            federation,
            config,
            answer_space="candidates",
            project_scores=True,
            run_dir=str(tmp_path / "projected"),
        )
        assert np.abs(plain - projected).max() < 1e-6 * np.abs(plain).max()

    def test_do_not_depend_on_how_users_are_dealt(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        users = make_users(6)
        found = []
        for nodes in (6, 2, 1):
            strategy = popri(
                config(
                    noise_multiplier=0.0,
                    num_rounds=2,
                    num_nodes=nodes,
                    run_dir=str(tmp_path / f"n{nodes}"),
                )
            )
            strategy.start(federation(users, num_nodes=nodes))
            found.append(
                [np.load(strategy.run.path / "rounds" / f"{n:04d}" / "release.npy") for n in (1, 2)]
            )
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                assert np.array_equal(one, two)

    def test_noisy_scores_are_made_of_the_release(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = popri(config(epsilon=1.0, num_rounds=1))
        strategy.start(federation())
        folder = strategy.run.path / "rounds" / "0001"
        stored = Candidates.from_parquet(folder / "candidates.parquet")
        expected = expand_scores(
            np.load(folder / "release.npy"), stored.embeddings, prompt=stored.group, centre="prompt"
        )
        scores = np.array([row["score"] for row in table(strategy.run.path, 1)])
        assert np.array_equal(scores, expected)
        best_of = {}
        for index, row in enumerate(table(strategy.run.path, 1)):
            group = row["prompt"]
            if group not in best_of or scores[index] > scores[best_of[group]]:
                best_of[group] = index
        chosen = [index for index, row in enumerate(table(strategy.run.path, 1)) if row["chosen"]]
        assert chosen
        assert set(chosen) <= set(best_of.values())


class TestKilledAndResumed:
    def reference(self, federation: Builder, config: Builder, tmp_path: Path) -> Path:
        strategy = popri(config(noise_multiplier=0.0, run_dir=str(tmp_path / "whole")))
        strategy.start(federation())
        return strategy.run.path

    def same_run(self, one: Path, other: Path) -> None:
        for number in (1, 2, 3):
            assert [row["text"] for row in table(one, number)] == [
                row["text"] for row in table(other, number)
            ]
            adapters = [
                (run / "rounds" / f"{number:04d}" / "adapter" / "adapter_config.json").read_text()
                for run in (one, other)
            ]
            assert adapters[0] == adapters[1]
        assert (one / "synthetic.jsonl").read_text() == (other / "synthetic.jsonl").read_text()

    def test_in_generation(
        self,
        federation: Builder,
        config: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from flower_privsyn.strategies.parts import preference_rounds

        monkeypatch.setattr(preference_rounds, "_LOCAL_BATCH", 10)
        whole = self.reference(federation, config, tmp_path)

        class Dying(WordGenerator):
            calls = 0
            asked = 0
            dies_at = 6  # in the second round's candidates

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                self.calls += not is_rehearsal(prompts, kwargs["sampling"])
                if self.calls == self.dies_at:
                    raise Killed
                if kwargs.get("num_samples", 1) > 1:
                    self.asked += len(prompts)
                return super().generate(prompts, **kwargs)

        first = Dying(WORDS)
        with pytest.raises(Killed):
            popri(config(noise_multiplier=0.0), generator=first).start(federation())
        assert (tmp_path / "run" / "rounds" / "0002" / "responses.jsonl").exists()
        second = Dying(WORDS)
        second.dies_at = -1
        popri(config(noise_multiplier=0.0, resume=True), generator=second).start(federation())
        assert first.asked == 10
        assert first.asked + second.asked == 3 * 8  # no prompt is asked twice
        assert [(r["round"], r["interrupted"]) for r in releases(tmp_path / "run")] == [
            (1, False),
            (2, False),
            (3, False),
        ]
        self.same_run(whole, tmp_path / "run")

    def test_in_the_first_generation_nothing_is_charged(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        class Dying(WordGenerator):
            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                if is_rehearsal(prompts, kwargs["sampling"]):
                    return super().generate(prompts, **kwargs)
                raise Killed

        with pytest.raises(Killed):
            popri(config(), generator=Dying(WORDS)).start(federation())
        assert releases(tmp_path / "run") == []
        popri(config(resume=True)).start(federation())
        assert [r["round"] for r in releases(tmp_path / "run")] == [1, 2, 3]

    def test_in_scoring(self, federation: Builder, config: Builder, tmp_path: Path) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            if "privsyn.answer" in reply.content:
                dying.answers += 1  # type: ignore[attr-defined]
                if dying.answers == 3:  # type: ignore[attr-defined]
                    raise Killed
            return [reply]

        dying.answers = 0  # type: ignore[attr-defined]
        with pytest.raises(Killed):
            popri(config(epsilon=4.0)).start(federation(tamper=dying))
        strategy = popri(config(epsilon=4.0, resume=True))
        strategy.start(federation())
        run = tmp_path / "run"
        charged = releases(run)
        assert [(r["round"], r["interrupted"]) for r in charged] == [
            (1, False),
            (2, True),
            (3, False),
        ]
        assert charged[-1]["epsilon_release"] == pytest.approx(4.0, rel=1e-3)
        assert charged[-1]["epsilon_release"] <= 4.0
        # The charged round's candidates stand again, and are what the third round trains on.
        assert [r["text"] for r in table(run, 3)] == [r["text"] for r in table(run, 2)]
        assert {r["id"].split(":")[0] for r in table(run, 3)} == {"2"}
        assert strategy.run.rounds_with_outcome("interrupted") == [2]
        assert strategy.run.state["summary"]["rounds_learned"] == [1, 3]

    def test_in_the_last_scoring(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            if (
                "privsyn.answer" in reply.content
                and request.content["privsyn.request"]["round"] > 2
            ):
                raise Killed
            return [reply]

        with pytest.raises(Killed):
            popri(config()).start(federation(tamper=dying))
        grid = federation()
        strategy = popri(config(resume=True))
        strategy.start(grid)
        assert not [m for m in grid.requests if m.metadata.message_type != "query.prepare"]
        assert [r["round"] for r in releases(tmp_path / "run")] == [1, 2, 3]
        assert strategy.run.state["summary"]["writer"] == "the adapter that wrote in round 3"

    def test_in_training(self, federation: Builder, config: Builder, tmp_path: Path) -> None:
        whole = self.reference(federation, config, tmp_path)
        calls = []

        def dying(model: Any, pairs: Any, **kwargs: Any) -> Any:
            calls.append(kwargs["output"].parent.name)
            if len(calls) == 2:
                raise Killed
            return train_words(model, pairs, **kwargs)

        with pytest.raises(Killed):
            popri(config(noise_multiplier=0.0), trainer=dying).start(federation())
        popri(config(noise_multiplier=0.0, resume=True), trainer=dying).start(federation())
        assert calls == ["0001", "0002", "0002", "0003"]
        assert [(r["round"], r["interrupted"]) for r in releases(tmp_path / "run")] == [
            (1, False),
            (2, False),
            (3, False),
        ]
        self.same_run(whole, tmp_path / "run")

    def test_a_training_that_ran_out_of_memory_goes_on_with_less(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        """The round is paid for, and the sentence says what to lower: so that must be allowed."""
        sizes = []

        def hungry(model: Any, pairs: Any, **kwargs: Any) -> Any:
            sizes.append(kwargs["settings"].micro_batch_size)
            if sizes[-1] > 2:
                raise TrainingError("preference training needs more memory than cuda:0 has")
            return train_words(model, pairs, **kwargs)

        with pytest.raises(TrainingError):
            popri(config(), trainer=hungry).start(federation())
        with pytest.raises(ConfigError, match="learning-rate = 0.5 differs"):
            popri(config(resume=True, learning_rate=0.5), trainer=hungry).start(federation())
        less = {"training_micro_batch_size": 2, "gradient_checkpointing": True}
        strategy = popri(config(resume=True, **less), trainer=hungry)
        strategy.start(federation())
        assert sizes == [8, 2, 2, 2]
        assert [r["round"] for r in releases(tmp_path / "run")] == [1, 2, 3]

    def test_in_the_final_generation(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        class Dying(WordGenerator):
            calls = 0

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                self.calls += not is_rehearsal(prompts, kwargs["sampling"])
                if self.calls == 5:
                    raise Killed
                return super().generate(prompts, **kwargs)

        values = {"synthetic_samples": 400}
        with pytest.raises(Killed):
            popri(config(**values), generator=Dying(WORDS)).start(federation())
        kept = lines(tmp_path / "run" / "expanded.jsonl")
        assert kept
        popri(config(**values, resume=True)).start(federation())
        written = lines(tmp_path / "run" / "synthetic.jsonl")
        assert len(written) == 400
        assert written[: len(kept)] == kept
        assert len(releases(tmp_path / "run")) == 3


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
        strategy.start(grid)
        charged = releases(tmp_path / "run")
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


def rdp_epsilon(config: POPriConfig, sampling: Sampling) -> float:
    """What the settings cost by Renyi accounting, as the paper has it."""
    release = Release(
        noise_multiplier=float(config.noise_multiplier or 0.0),
        sampling=sampling,
        relation=NeighboringRelation.ZERO_OUT,
    )
    return accountant(config.accountant).epsilon({release: config.num_rounds}, delta=config.delta)


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"num_prompts": 0}, "num-prompts"),
            ({"responses_per_prompt": 1}, "responses-per-prompt"),
            ({"rejected_rank": 1}, "rejected-rank"),
            ({"rejected_rank": 6}, "rejected-rank = 6 .*responses-per-prompt = 5"),
            ({"loss": "ppo"}, "loss"),
            ({"beta": 0.0}, "beta"),
            ({"learning_rate": 0.0}, "learning-rate"),
            ({"learning_rate_schedule": "linear"}, "learning-rate-schedule"),
            ({"lora_rank": 0}, "lora-rank"),
            ({"training_epochs": 0}, "training-epochs"),
            ({"training_micro_batch_size": 0}, "training-micro-batch-size"),
            ({"temperature": 0.0}, "temperature"),
            ({"top_p": 0.0}, "top-p"),
            ({"reference": "none"}, "reference"),
            ({"centre": "user"}, "centre"),
            ({"scale": "none"}, "scale"),
            ({"answer_space": "all"}, "answer-space"),
            ({"project_scores": True}, "project-scores.*answer-space"),
            ({"checkpoint": "best"}, "checkpoint"),
            ({"checkpoint": "sketch-mmd", "num_rounds": 1}, "num-rounds.*at least 2"),
            ({"patience": 3}, "patience = 3 needs checkpoint"),
            ({"num_features": 63}, "num-features must be an even whole number"),
            ({"bandwidth": -1.0}, "bandwidth"),
            ({"embedding_weight": 1.5}, "embedding-weight"),
            ({"synthetic_samples": 0}, "synthetic-samples"),
            ({"generator": "http://localhost:8000/v1"}, "training-model"),
            ({"generator": "gguf:model.gguf"}, "loads no adapters"),
        ],
    )
    def test_bad_ones_are_named(self, config: Builder, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            config(**changes)

    def test_are_read_from_flat_keys(self) -> None:
        config = POPriConfig.from_run_config(
            {
                "epsilon": 1.0,
                "num-prompts": 60,
                "answer-space": "candidates",
                "project-scores": True,
                "data": "users.jsonl",
            }
        )
        assert (config.num_prompts, config.project_scores) == (60, True)
        with pytest.raises(ConfigError, match='"num-prompt".*"num-prompts"'):
            POPriConfig.from_run_config({"epsilon": 1.0, "num-prompt": 5})

    def test_the_model_to_train(self, config: Builder) -> None:
        assert config().model_to_train == "privsyn-lm"
        assert config(generator="vllm:/models/llama").model_to_train == "/models/llama"
        served = config(generator="http://h:1/v1#m", training_model="/models/llama")
        assert served.model_to_train == "/models/llama"

    def test_presets(self) -> None:
        ours = POPriConfig.popri(epsilon=1.0)
        assert (ours.num_rounds, ours.num_prompts, ours.responses_per_prompt) == (20, 1800, 10)
        assert (ours.centre, ours.scale, ours.answer_space) == ("prompt", "clip", "span")
        assert (ours.rejected_rank, ours.delta, ours.max_tokens) == (5, 3e-6, 64)
        printed = POPriConfig.popri_as_printed(epsilon="1")
        assert (printed.noise_multiplier, printed.accountant) == (19.3, "rdp")
        assert (printed.centre, printed.scale, printed.answer_space) == (
            "none",
            "clip",
            "candidates",
        )
        assert (printed.lora_rank, printed.lora_alpha, printed.learning_rate) == (4, 8, 8e-7)
        assert (printed.training_batch_size, printed.training_epochs) == (24, 2)
        coded = POPriConfig.popri_as_coded(epsilon="7", participation="1000-of-72000")
        assert (coded.sampling, coded.sample_size, coded.noise_multiplier) == (
            "fixed-size",
            1000,
            0.52,
        )
        assert (coded.centre, coded.scale, coded.beta) == ("all", "unit", 0.01)
        assert (coded.lora_rank, coded.lora_alpha, coded.training_epochs) == (16, 16, 1)
        assert (coded.learning_rate_schedule, coded.warmup_steps) == ("constant", 10)
        with pytest.raises(ConfigError, match="epsilon and participation"):
            POPriConfig.popri_as_printed(epsilon="3")  # type: ignore[arg-type]

    def test_printed_noise_multipliers_give_the_printed_epsilons(self) -> None:
        rows = [
            row
            for row in json.loads(REFERENCE.read_text())["gaussian_rows"]
            if row["paper"] == "POPri" and row["T"] == 20
        ]
        for (epsilon, participation), multiplier in PRINTED_NOISE_MULTIPLIERS.items():
            config = POPriConfig.popri_as_printed(epsilon=epsilon, participation=participation)  # type: ignore[arg-type]
            population = 72000 if participation == "full" else int(participation.split("-of-")[1])
            cohort = population if participation == "full" else 1000
            row = next(
                row
                for row in rows
                if (row["total_clients"], row["clients_per_round"]) == (population, cohort)
                and row["eps_claimed"] == int(epsilon)
            )
            assert row["sigma_printed"] == multiplier
            sampling = config.sampling_of(population)
            expected = PoissonSampling if cohort < population else FullParticipation
            assert isinstance(sampling, expected)
            assert sampling.expected_users == pytest.approx(cohort)
            found = rdp_epsilon(config, sampling)
            assert found == pytest.approx(row["eps_opacus_rdp"], rel=0.01)

    def test_cohorts_of_a_fixed_size_cost_more_than_printed(self) -> None:
        config = POPriConfig.popri_as_coded(epsilon="1", participation="1000-of-72000")
        sampling = config.sampling_of(72000)
        assert isinstance(sampling, FixedSizeSampling)
        assert rdp_epsilon(config, sampling) > 1.0


class TestBeforeSpending:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"training_model": "/nowhere/lm"}, "/nowhere/lm"),
            ({"generator": "/nowhere/lm"}, "/nowhere/lm"),
            ({"embedding_model": "/nowhere/embedder"}, "/nowhere/embedder"),
            ({"prompt": "no-such-prompt"}, "no-such-prompt"),
            ({"public_text": "/nowhere/public.jsonl"}, "public-text"),
        ],
    )
    def test_what_is_missing_is_named(
        self,
        federation: Builder,
        config: Builder,
        tmp_path: Path,
        changes: dict[str, Any],
        named: str,
    ) -> None:
        parts: dict[str, Any] = {"embedder": HashEmbedder(), "generator": WordGenerator(WORDS)}
        if "generator" in changes:
            del parts["generator"]
        if "embedding_model" in changes:
            del parts["embedder"]
        with pytest.raises(PrivsynError, match=named):
            POPri(config(**changes), **parts).start(federation())
        assert not (tmp_path / "run" / "ledger.jsonl").exists()

    def test_a_failing_server_spends_nothing_more(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        class Failing(WordGenerator):
            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                if kwargs.get("adapter") is not None:
                    raise GenerationError("the server does not load the adapter")
                return super().generate(prompts, **kwargs)

        with pytest.raises(GenerationError, match="adapter"):
            popri(config(), generator=Failing(WORDS)).start(federation())
        assert [r["round"] for r in releases(tmp_path / "run")] == [1]
        popri(config(resume=True)).start(federation())
        assert [r["round"] for r in releases(tmp_path / "run")] == [1, 2, 3]


class TestResearch:
    """A choice by private text outside the budget: never by accident, never unmarked."""

    def text(self, tmp_path: Path) -> str:
        path = tmp_path / "validation.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in make_users(5).texts))
        return str(path)

    @pytest.mark.parametrize(
        "changes",
        [
            {"checkpoint": "validation"},
            {"checkpoint": "validation", "research": True},
            {"checkpoint": "validation", "validation_text": "private.jsonl"},
            {"research": True},
            {"validation_text": "private.jsonl"},
        ],
    )
    def test_needs_all_three_settings(self, config: Builder, changes: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="outside the budget"):
            config(**changes)

    @pytest.mark.parametrize(
        ("content", "named"),
        [(None, 'validation-text = ".*cannot be read'), ("", 'validation-text = ".*holds no text')],
    )
    def test_validation_text_that_is_not_there_is_named(
        self,
        federation: Builder,
        config: Builder,
        tmp_path: Path,
        content: str | None,
        named: str,
    ) -> None:
        path = tmp_path / "validation.jsonl"
        if content is not None:
            path.write_text(content)
        strategy = popri(config(checkpoint="validation", research=True, validation_text=str(path)))
        with pytest.raises(PrivsynError, match=named):
            strategy.start(federation())
        assert not (tmp_path / "run" / "ledger.jsonl").exists()

    def test_stamps_the_run_everywhere(
        self,
        federation: Builder,
        config: Builder,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        from flower_privsyn.cli import main
        from flower_privsyn.runs import RESEARCH_STAMP

        values = {
            "checkpoint": "validation",
            "research": True,
            "validation_text": self.text(tmp_path),
            "num_features": 64,
        }
        strategy = popri(config(**values))
        strategy.start(federation())
        run = strategy.run.path
        assert RESEARCH_STAMP in caplog.text
        assert strategy.run.config["research"] is True
        assert strategy.run.state["summary"]["stamp"] == RESEARCH_STAMP
        assert [line["stamp"] for line in lines(run / "metrics.jsonl")] == [RESEARCH_STAMP] * 3
        assert main(["inspect", str(run)]) == 0
        assert "private text was used outside the budget" in " ".join(
            capsys.readouterr().out.split()
        )
        # No release pays for the choice: that is why it is stamped.
        assert {line["query"] for line in releases(run)} == {"mean_similarity"}
        assert sorted(strategy.run.state["summary"]["squared_mmd"]) == ["1", "2", "3", "4"]

    def test_an_ordinary_run_has_no_stamp(self, federation: Builder, config: Builder) -> None:
        strategy = popri(config(num_rounds=1))
        strategy.start(federation())
        assert "stamp" not in strategy.run.state["summary"]
        assert "stamp" not in lines(strategy.run.path / "metrics.jsonl")[0]


class TestGenerationServer:
    def test_every_round_s_adapter_is_loaded_under_its_own_name(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        from tests.support.generation_server import Server

        server = Server()
        try:
            settings = config(
                generator=f"{server.url}#tiny", training_model="privsyn-lm", num_rounds=2
            )
            strategy = POPri(settings, embedder=HashEmbedder(), trainer=train_words)
            strategy.start(federation())
        finally:
            server.close()
        run = tmp_path / "run"
        loaded = [body for path, body, _ in server.requests if path == "/v1/load_lora_adapter"]
        folders = [run / "rounds" / number / "adapter" for number in ("0001", "0002")]
        assert [Path(body["lora_path"]) for body in loaded] == [f.resolve() for f in folders]
        assert len({body["lora_name"] for body in loaded}) == 2
        asked = [body["model"] for path, body, _ in server.requests if path == "/v1/completions"]
        assert asked.pop(0) == "tiny"  # whether it answers at all, before the first round
        # 8 prompts by the model itself, 8 with the first adapter, then the corpus with the second.
        assert asked[:8] == ["tiny"] * 8
        assert asked[8:16] == [loaded[0]["lora_name"]] * 8
        assert set(asked[16:]) == {loaded[1]["lora_name"]}
        first = [row["text"].split()[0] for row in table(run, 1)]
        second = [row["text"].split()[0] for row in table(run, 2)]
        assert set(first) == {"base"}
        assert len(set(second)) == 1
        assert second[0] != "base"


class TestWithRealModels:
    """The bundled language model and real training; the embeddings stay a fake."""

    def settings(self, config: Builder, **changes: Any) -> POPriConfig:
        values = {
            "num_rounds": 2,
            "num_prompts": 3,
            "responses_per_prompt": 3,
            "rejected_rank": 3,
            "training_epochs": 1,
            "training_batch_size": 2,
            "max_new_tokens": 16,
            "synthetic_samples": 4,
            "public_text": "bundled",
            "max_tokens": 24,
        }
        built: POPriConfig = config(**{**values, **changes})
        return built

    def test_two_rounds_and_a_kill_inside_training(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        from flower_privsyn.generation import TransformersGenerator
        from flower_privsyn.training import train_preferences

        calls = []

        def dying(model: Any, pairs: Any, **kwargs: Any) -> Any:
            calls.append(kwargs["adapter"])
            if len(calls) == 2:

                def stop(_: int) -> None:
                    raise Killed

                kwargs["progress"] = stop
            return train_preferences(model, pairs, **kwargs)

        generator = TransformersGenerator("privsyn-lm")
        with pytest.raises(Killed):
            POPri(
                self.settings(config), embedder=HashEmbedder(), generator=generator, trainer=dying
            ).start(federation())
        run = tmp_path / "run"
        assert not (run / "rounds" / "0002" / "adapter").exists()
        strategy = POPri(
            self.settings(config, resume=True), embedder=HashEmbedder(), generator=generator
        )
        strategy.start(federation())
        assert calls == [None, run / "rounds" / "0001" / "adapter"]
        assert [(r["round"], r["interrupted"]) for r in releases(run)] == [(1, False), (2, False)]
        adapters = [
            (run / "rounds" / number / "adapter" / "adapter_model.safetensors").read_bytes()
            for number in ("0001", "0002")
        ]
        assert adapters[0] != adapters[1]
        assert not list(run.rglob("*.partial"))
        record = json.loads((run / "rounds" / "0002" / "training.json").read_text())
        assert record["pairs"] == 3
        assert record["steps"] == 2
        assert record["loss"] == pytest.approx(0.693, abs=0.2)
        written = lines(run / "synthetic.jsonl")
        assert len(written) == 4
        adapted = generator.generate(
            [table(run, 1)[0]["prompt_text"]],
            sampling=SamplingParameters(seed=1, max_new_tokens=8),
            adapter=run / "rounds" / "0002" / "adapter",
        )
        assert adapted[0][0]
