"""POPri end to end in one process, on real Flower messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flower_privsyn.generation import SamplingParameters
from flower_privsyn.queries import expand_scores
from flower_privsyn.strategies import POPri, POPriConfig
from flower_privsyn.testing import HashEmbedder, WordGenerator, train_words
from tests.support.answering import read_answer
from tests.support.federation import WORDS, is_rehearsal, make_users
from tests.support.popri import popri, small_popri, stored, table
from tests.support.probe import Killed
from tests.support.run_files import lines, release, releases

Builder = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., POPriConfig]:
    """Settings of a small run; keyword arguments replace them."""
    return small_popri(tmp_path / "run", public_file)


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
            embeddings, prompt = stored(strategy.run.path, 3)
            if space == "candidates":
                assert np.array_equal(sent["candidates"].numpy(), embeddings)
            else:
                root = strategy.config.similarity().broadcast(embeddings, prompt=prompt)
                assert np.array_equal(sent["root"].numpy(), root["root"])
            answers = [
                read_answer(reply).total
                for reply in grid.replies
                if "privsyn.answer" in reply.content
            ]
            assert {len(answer) for answer in answers[-2:]} == {numbers or len(embeddings)}

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
            return float((stored(strategy.run.path, number)[0] @ private.T).mean())

        assert similarity(5) > similarity(1) + 0.15
        written = [row["text"] for row in lines(strategy.run.synthetic_jsonl)]
        assert float((HashEmbedder().embed(written) @ private.T).mean()) > similarity(1) + 0.15


class TestScoresAtZeroNoise:
    def test_noisy_scores_are_made_of_the_release(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = popri(config(epsilon=1.0, num_rounds=1))
        strategy.start(federation())
        embeddings, prompt = stored(strategy.run.path, 1)
        expected = expand_scores(
            release(strategy.run.path, 1), embeddings, prompt=prompt, centre="prompt"
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
        monkeypatch.setattr(WordGenerator, "at_once", 10, raising=False)
        whole = self.reference(federation, config, tmp_path)

        class Dying(WordGenerator):
            calls = 0
            asked = 0
            dies_at = 6  # in the second round's candidates

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                self.calls += not is_rehearsal(prompts)
                if self.calls == self.dies_at:
                    raise Killed
                if kwargs.get("num_samples", 1) > 1 and not is_rehearsal(prompts):
                    self.asked += len(prompts)
                return super().generate(prompts, **kwargs)

        first = Dying(WORDS)
        with pytest.raises(Killed):
            popri(config(noise_multiplier=0.0), generator=first).start(federation())
        assert (tmp_path / "run/rounds/0001/scratch/responses.jsonl").exists()
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

    def test_in_the_final_generation(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        class Dying(WordGenerator):
            calls = 0

            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                self.calls += not is_rehearsal(prompts)
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
        first = [record["text"] for record in kept]
        assert [record["text"] for record in written[: len(kept)]] == first
        assert len(releases(tmp_path / "run")) == 3


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
