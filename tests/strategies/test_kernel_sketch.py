"""One release, and everything that is made of it afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from flwr.app import Message

from flower_privsyn.errors import ConfigError, FederationError, RunDirectoryError
from flower_privsyn.privacy.grid import GRID
from flower_privsyn.private_path.release import SumOfUsers
from flower_privsyn.queries import KernelMean, features, mean_features
from flower_privsyn.runs import RESEARCH_STAMP, RunDirectory
from flower_privsyn.strategies import KernelSketchConfig, Sketch
from flower_privsyn.strategies.parts.candidates import Candidates
from flower_privsyn.strategies.parts.population import Population
from flower_privsyn.testing import HashEmbedder, ShuffleWords, WordGenerator, train_words
from tests.support.federation import WORDS, is_rehearsal, make_users
from tests.support.methods import learning_nothing, sketching
from tests.support.probe import Killed
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


def stored(run: Path, number: int) -> Candidates:
    return Candidates.from_parquet(run / "refinement" / f"{number:04d}" / "candidates.parquet")


def scores(run: Path, number: int) -> np.ndarray:
    table = pq.read_table(run / "refinement" / f"{number:04d}" / "candidates.parquet")
    return np.asarray(table.column("score").to_pylist())


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., KernelSketchConfig]:
    """Settings of a small run; keyword arguments replace them."""

    def build(**changes: Any) -> KernelSketchConfig:
        values: dict[str, Any] = {
            "num_nodes": 2,
            "num_prompts": 8,
            "responses_per_prompt": 5,
            "rejected_rank": 4,
            "refinement_rounds": 3,
            "num_features": 256,
            "num_candidates": 16,
            "public_text": str(public_file),
            "synthetic_samples": 20,
            "run_dir": str(tmp_path / "run"),
            "node_timeout": 0.2,
            "accept_noise": True,
            **changes,
        }
        if "epsilon" not in values and "noise_multiplier" not in values:
            values["epsilon"] = 8.0
        return KernelSketchConfig(**values)

    return build


class TestOneRelease:
    @pytest.mark.parametrize("refine", ["preference", "evolution"])
    def test_is_all_the_ledger_shows(
        self, federation: Builder, config: Builder, refine: str
    ) -> None:
        grid = federation()
        strategy = sketching(config(refine=refine, refinement_rounds=5, epsilon=2.0))
        strategy.start(grid)
        run = strategy.run.path
        charged = releases(run)
        assert [(line["round"], line["query"]) for line in charged] == [(1, "kernel_mean")]
        assert charged[0]["l2_sensitivity"] == 1.0
        assert charged[0]["epsilon_release"] == pytest.approx(2.0, rel=1e-3)
        assert charged[0]["epsilon_release"] <= 2.0
        asked = [m for m in grid.requests if m.metadata.message_type != "query.prepare"]
        assert len(asked) == 2  # one per node, once
        assert set(asked[0].content["privsyn.broadcast"]) == {"dimension"}
        assert len(list((run / "refinement").iterdir())) == (6 if refine == "preference" else 5)
        assert strategy.run.status == "finished"
        assert len(lines(run / "synthetic.jsonl")) == 20

    def test_has_the_whole_budget(self, federation: Builder, config: Builder) -> None:
        from flower_privsyn.privacy import FullParticipation, calibrate_noise_multiplier

        strategy = sketching(config(epsilon=1.0, refinement_rounds=1))
        strategy.start(federation())
        alone = calibrate_noise_multiplier(
            epsilon=1.0, delta=3e-6, rounds=1, sampling=FullParticipation(12)
        )
        assert releases(strategy.run.path)[0]["noise_multiplier"] == pytest.approx(alone)

    def test_at_zero_noise_is_the_sum_of_mean_features(
        self, federation: Builder, config: Builder
    ) -> None:
        users = make_users(9, samples=4)
        strategy = sketching(config(noise_multiplier=0.0, refinement_rounds=0))
        strategy.start(federation(users))
        sketch = Sketch.load(strategy.run.path)
        rows = features(HashEmbedder().embed(users.texts), query=sketch.query).astype(np.float64)
        expected = sum(rows[users.owners == user].mean(axis=0) for user in range(9))
        assert np.abs(sketch.total - expected).max() < 1e-6
        assert (sketch.num_users, sketch.noise_std) == (9, 0.0)

    def test_several_releases_are_composed_and_added(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = sketching(config(num_rounds=3, epsilon=3.0))
        strategy.start(federation())
        run = strategy.run.path
        charged = releases(run)
        assert len(charged) == 3
        assert charged[-1]["epsilon_release"] == pytest.approx(3.0, rel=1e-3)
        sketch = Sketch.load(run)
        added = sum(np.load(run / "rounds" / f"{n:04d}" / "release.npy") for n in (1, 2, 3))
        assert np.allclose(sketch.total, added)
        assert sketch.num_users == 36
        std = charged[0]["noise_multiplier"]
        assert sketch.noise_std == pytest.approx(std * 3**0.5)

    def test_under_poisson_sampling_the_expected_users_count(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = sketching(
            config(
                sampling="poisson",
                sampling_rate=0.5,
                noise_multiplier=1.0,
                accountant="rdp",
                refinement_rounds=1,
            )
        )
        strategy.start(federation())
        assert Sketch.load(strategy.run.path).num_users == 6.0
        assert releases(strategy.run.path)[0]["num_users"] is None

    def test_users_who_did_not_answer_are_not_counted(
        self, federation: Builder, config: Builder
    ) -> None:
        def losing(request: Message, reply: Message) -> list[Message]:
            answers = "privsyn.answer" in reply.content
            return [] if answers and request.metadata.dst_node_id == 1 else [reply]

        strategy = sketching(config(noise_multiplier=0.0, refinement_rounds=0))
        strategy.start(federation(tamper=losing))
        sketch = Sketch.load(strategy.run.path)
        answered = lines(strategy.run.path / "metrics.jsonl")[0]["num_users"]
        assert (sketch.num_users, answered) == (6, 6)
        assert np.linalg.norm(sketch.total) <= 6

    def test_that_was_lost_is_no_result_and_is_asked_again(
        self, federation: Builder, config: Builder
    ) -> None:
        def losing(request: Message, reply: Message) -> list[Message]:
            return [] if "privsyn.answer" in reply.content else [reply]

        strategy = sketching(config(min_users=12))
        with pytest.raises(FederationError, match="no round was released.* nothing was spent"):
            strategy.start(federation(tamper=losing))
        assert releases(strategy.run.path) == []
        assert not strategy.run.synthetic_jsonl.exists()
        again = sketching(config(min_users=12, resume=True))
        again.start(federation())
        assert [line["round"] for line in releases(again.run.path)] == [1]
        assert again.run.synthetic_jsonl.exists()


class TestKernel:
    def test_is_settled_from_public_text_alone_and_kept(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        found = []
        for name, count in (("a", 3), ("b", 40)):
            strategy = sketching(config(run_dir=str(tmp_path / name), refinement_rounds=0))
            strategy.start(federation(make_users(count)))
            found.append(json.loads((tmp_path / name / "kernel.json").read_text()))
        assert found[0] == found[1]
        assert 0.5 < found[0]["bandwidth"] < 2.0
        assert found[0]["num-features"] == 256

    def test_given_bandwidth_and_weight_are_used(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = sketching(
            config(bandwidth=0.7, embedding_weight=0.25, refinement_rounds=0, seed=5)
        )
        strategy.start(federation())
        sketch = Sketch.load(strategy.run.path)
        assert (sketch.query.bandwidth, sketch.query.embedding_weight) == (0.7, 0.25)
        assert len(sketch.total) == 256 + 32

    def test_a_resumed_run_keeps_the_features_that_were_released(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        class Dying(WordGenerator):
            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                if is_rehearsal(prompts, kwargs["sampling"]):
                    return super().generate(prompts, **kwargs)
                raise Killed

        with pytest.raises(Killed):
            sketching(config(), generator=Dying(WORDS)).start(federation())
        kernel = tmp_path / "run" / "kernel.json"
        changed = json.loads(kernel.read_text()) | {"bandwidth": 1.2345}
        kernel.write_text(json.dumps(changed))  # as another machine would have computed it
        sketching(config(resume=True)).start(federation())
        assert Sketch.load(tmp_path / "run").query.bandwidth == 1.2345

    @pytest.mark.parametrize("damaged", ['{"num-feat', "[]", '{"num-features": 3}', '{"width": 1}'])
    def test_a_damaged_one_is_a_sentence(
        self, federation: Builder, config: Builder, tmp_path: Path, damaged: str
    ) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            raise Killed

        with pytest.raises(Killed):
            sketching(config()).start(federation(tamper=dying))
        (tmp_path / "run" / "kernel.json").write_text(damaged)
        with pytest.raises(RunDirectoryError, match=r"kernel\.json holds no readable kernel"):
            sketching(config(resume=True)).start(federation())


class TestPreferences:
    @pytest.mark.parametrize("objective", ["witness", "mean"])
    def test_scores_are_the_sketch_s(
        self, federation: Builder, config: Builder, objective: str
    ) -> None:
        strategy = sketching(config(objective=objective))
        strategy.start(federation())
        run = strategy.run.path
        sketch = Sketch.load(run)
        for number in (1, 2, 3):
            embeddings = stored(run, number).embeddings
            phi = features(embeddings, query=sketch.query).astype(np.float64)
            mean = sketch.total / sketch.num_users
            if objective == "witness":
                mean = mean - mean_features(embeddings, query=sketch.query)
            assert np.allclose(scores(run, number), phi @ mean, rtol=1e-5, atol=1e-7)

    @pytest.mark.parametrize("objective", ["witness", "mean"])
    def test_the_generator_moves_towards_the_users(
        self, federation: Builder, config: Builder, objective: str
    ) -> None:
        users = make_users(300)
        strategy = sketching(
            config(objective=objective, refinement_rounds=6, num_prompts=16, epsilon=8.0)
        )
        strategy.start(federation(users))
        private = HashEmbedder().embed(users.texts)
        first = float((stored(strategy.run.path, 1).embeddings @ private.T).mean())
        written = [row["text"] for row in lines(strategy.run.synthetic_jsonl)]
        # Over the noise 0.14 and more on average, with standard deviations of 0.02.
        assert float((HashEmbedder().embed(written) @ private.T).mean()) > first + 0.06
        distances = strategy.run.state["summary"]["squared_mmd"]
        assert min(distances.values()) < 0.7 * distances["1"]  # 0.52 and 0.03 at most

    def test_the_round_with_the_smallest_distance_writes(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = sketching(config(refinement_rounds=4))
        strategy.start(federation())
        summary = strategy.run.state["summary"]
        distances = {int(n): value for n, value in summary["squared_mmd"].items()}
        assert sorted(distances) == [1, 2, 3, 4, 5]
        writer = min(distances, key=lambda n: distances[n])
        assert summary["writer"] == f"the adapter that wrote in refinement round {writer}"
        assert {row["round"] for row in lines(strategy.run.synthetic_jsonl)} == {writer}
        sketch = Sketch.load(strategy.run.path)
        for number, value in distances.items():
            embeddings = stored(strategy.run.path, number).embeddings
            assert value == pytest.approx(sketch.squared_mmd(embeddings), rel=1e-9)

    def test_the_last_one_writes_if_asked(self, federation: Builder, config: Builder) -> None:
        strategy = sketching(config(checkpoint="last"))
        strategy.start(federation())
        assert {row["round"] for row in lines(strategy.run.synthetic_jsonl)} == {4}

    def test_patience_ends_the_refinement(self, federation: Builder, config: Builder) -> None:
        strategy = sketching(config(refinement_rounds=30, patience=2), trainer=learning_nothing)
        strategy.start(federation())
        assert len(strategy.run.state["summary"]["squared_mmd"]) < 20
        assert strategy.run.status == "finished"


class TestResearch:
    """The round that writes chosen by private text outside the budget: marked, and by that text."""

    @pytest.mark.parametrize("refine", ["preference", "evolution"])
    def test_stamps_the_run_and_judges_by_the_validation_text(
        self, federation: Builder, config: Builder, tmp_path: Path, refine: str
    ) -> None:
        file = tmp_path / "validation.jsonl"
        file.write_text("".join(json.dumps({"text": t}) + "\n" for t in make_users(5).texts))
        strategy = sketching(
            config(
                refine=refine,
                checkpoint="validation",
                research=True,
                validation_text=str(file),
                max_tokens=64,
            )
        )
        strategy.start(federation())
        run = strategy.run.path
        summary = strategy.run.state["summary"]
        assert summary["stamp"] == RESEARCH_STAMP
        assert [line["stamp"] for line in lines(run / "metrics.jsonl")] == [RESEARCH_STAMP]
        assert len(releases(run)) == 1
        sketch = Sketch.load(run)
        private = HashEmbedder().embed(list(dict.fromkeys(make_users(5).texts)))
        mean = mean_features(private, query=sketch.query)
        if refine == "preference":
            embeddings = stored(run, 1).embeddings
        else:
            rows = run / "refinement" / "0001" / "population.parquet"
            pool, survived = Population.from_parquet(rows), pq.read_table(rows)["survived"]
            assert pool.embeddings is not None
            embeddings = pool.embeddings[survived.to_numpy()]
        expected = np.sum((mean - mean_features(embeddings, query=sketch.query)) ** 2)
        assert summary["squared_mmd"]["1"] == pytest.approx(expected, rel=1e-6)


class TestEvolution:
    def survivors(self, run: Path, number: int) -> list[dict[str, Any]]:
        rows = pq.read_table(
            run / "refinement" / f"{number:04d}" / "population.parquet"
        ).to_pylist()
        return [row for row in rows if row["survived"]]

    def test_survivors_come_nearer_to_the_users(self, federation: Builder, config: Builder) -> None:
        users = make_users(300)
        strategy = sketching(config(refine="evolution", refinement_rounds=3, epsilon=2.0))
        strategy.start(federation(users))
        run = strategy.run.path
        private = HashEmbedder().embed(users.texts)
        first = pq.read_table(run / "refinement" / "0001" / "population.parquet").to_pylist()
        public = HashEmbedder().embed([row["text"] for row in first])
        kept = [row["text"] for row in self.survivors(run, 3)]
        assert len(first) == 32
        assert len(kept) == 16
        gain = (HashEmbedder().embed(kept) @ private.T).mean() - (public @ private.T).mean()
        assert gain > 0.07  # 0.114 on average over the noise, with a standard deviation of 0.010

    def test_survivors_compete_with_their_variations(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = sketching(config(refine="evolution", variations=2))
        strategy.start(federation())
        run = strategy.run.path
        before = {row["id"] for row in self.survivors(run, 1)}
        second = pq.read_table(run / "refinement" / "0002" / "population.parquet").to_pylist()
        assert before <= {row["id"] for row in second}
        fresh = [row for row in second if row["id"] not in before]
        assert fresh
        assert {parent for row in fresh for parent in row["parent"]} <= before
        assert len({row["text"] for row in second}) == len(second)
        written = lines(strategy.run.synthetic_jsonl)
        chosen = {row["round"] for row in written}
        assert len(chosen) == 1
        ids = {row["id"] for row in self.survivors(run, chosen.pop())}
        assert all(set(row["parent"]) <= ids for row in written)

    def test_mean_takes_the_best_one_by_one(self, federation: Builder, config: Builder) -> None:
        strategy = sketching(config(refine="evolution", objective="mean", refinement_rounds=1))
        strategy.start(federation())
        run = strategy.run.path
        pool = Population.from_parquet(run / "refinement" / "0001" / "population.parquet")
        found = Sketch.load(run).mean_scores(pool.embeddings)
        expected = {pool.ids[i] for i in np.argsort(-found)[:16]}
        assert {row["id"] for row in self.survivors(run, 1)} == expected

    @pytest.mark.parametrize("checkpoint", ["last", "sketch-mmd"])
    def test_the_survivors_of_the_chosen_round_are_expanded(
        self, federation: Builder, config: Builder, checkpoint: str
    ) -> None:
        strategy = sketching(
            config(
                refine="evolution",
                checkpoint=checkpoint,
                objective="mean",  # the best ones by one, which in the end are all alike
                refinement_rounds=4,
                noise_multiplier=0.0,
            )
        )
        strategy.start(federation(make_users(50)))
        distances = strategy.run.state["summary"]["squared_mmd"]
        nearest = int(min(distances, key=lambda number: distances[number]))
        assert nearest < 4
        chosen = 4 if checkpoint == "last" else nearest
        assert {row["round"] for row in lines(strategy.run.synthetic_jsonl)} == {chosen}

    def test_no_adapter_is_trained(self, federation: Builder, config: Builder) -> None:
        def never(*_: Any, **__: Any) -> Any:
            raise AssertionError("evolution trained a generator")

        strategy = sketching(config(refine="evolution"), trainer=never)
        strategy.start(federation())
        assert not list(strategy.run.path.rglob("adapter*"))


class TestResuming:
    def whole(self, federation: Builder, config: Builder, tmp_path: Path, **changes: Any) -> Path:
        strategy = sketching(
            config(noise_multiplier=0.0, run_dir=str(tmp_path / "whole"), **changes)
        )
        strategy.start(federation())
        return strategy.run.path

    @pytest.mark.parametrize("place", ["generation", "training", "variation"])
    def test_refinement_goes_on_where_it_was(
        self, federation: Builder, config: Builder, tmp_path: Path, place: str
    ) -> None:
        refine = "evolution" if place == "variation" else "preference"
        whole = self.whole(federation, config, tmp_path, refine=refine)
        calls = {"generation": 0, "training": 0, "variation": 0}

        def count(what: str) -> None:
            calls[what] += 1
            if what == place and calls[what] == 2:
                raise Killed

        class Generator(WordGenerator):
            def generate(self, prompts: Any, **kwargs: Any) -> list[list[str]]:
                if kwargs.get("num_samples", 1) > 1:
                    count("generation")
                return super().generate(prompts, **kwargs)

        class Variation(ShuffleWords):
            def vary(self, texts: Any, **kwargs: Any) -> list[str]:
                count("variation")
                return super().vary(texts, **kwargs)

        def trainer(model: Any, pairs: Any, **kwargs: Any) -> Any:
            count("training")
            return train_words(model, pairs, **kwargs)

        parts = {"generator": Generator(WORDS), "variation": Variation(), "trainer": trainer}
        values = {"noise_multiplier": 0.0, "refine": refine}
        with pytest.raises(Killed):
            sketching(config(**values), **parts).start(federation())
        grid = federation()
        sketching(config(**values, resume=True), **parts).start(grid)
        assert not [m for m in grid.requests if m.metadata.message_type != "query.prepare"]
        run = tmp_path / "run"
        assert len(releases(run)) == 1
        assert calls[place] == {"generation": 5, "training": 4, "variation": 3}[place]
        assert (run / "synthetic.jsonl").read_text() == (whole / "synthetic.jsonl").read_text()

    def test_killed_while_users_answered(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        def dying(request: Message, reply: Message) -> list[Message]:
            if "privsyn.answer" in reply.content:
                raise Killed
            return [reply]

        with pytest.raises(Killed):
            sketching(config(num_rounds=2, epsilon=2.0)).start(federation(tamper=dying))
        strategy = sketching(config(num_rounds=2, epsilon=2.0, resume=True))
        strategy.start(federation())
        charged = releases(tmp_path / "run")
        assert [(r["round"], r["interrupted"]) for r in charged] == [(1, True), (2, False)]
        assert charged[-1]["epsilon_release"] <= 2.0
        assert Sketch.load(tmp_path / "run").num_users == 12
        assert RunDirectory.open(tmp_path / "run").status == "finished"


def clusters(seed: int, sizes: tuple[int, ...], dimension: int = 16) -> list[np.ndarray]:
    """Tight groups of unit vectors around orthogonal directions."""
    generator = np.random.default_rng(seed)
    made = []
    for axis, size in enumerate(sizes):
        rows = 0.15 * generator.standard_normal((size, dimension))
        rows[:, axis] += 1.0
        made.append((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))
    return made


class TestSketch:
    query = KernelMean(num_features=1024, bandwidth=0.6, feature_seed=3)

    def of(self, private: np.ndarray, *, std: float = 0.0, seed: int = 0) -> Sketch:
        total = features(private, query=self.query).astype(np.float64).sum(axis=0)
        noise = np.random.default_rng(seed).normal(0.0, std, len(total)) if std else 0.0
        total = np.rint((total + noise) / GRID) * GRID
        return Sketch(query=self.query, total=total, num_users=float(len(private)), noise_std=std)

    def test_herding_is_the_greedy_choice(self) -> None:
        private = np.concatenate(clusters(1, (30, 10)))
        pool = np.concatenate(clusters(2, (12, 12, 12)))
        sketch = self.of(private, std=0.1)
        rows = features(pool, query=self.query).astype(np.float64)
        target = sketch.total / sketch.num_users
        chosen: list[int] = []
        for _ in range(8):
            rest = [i for i in range(len(pool)) if i not in chosen]
            gaps = [float(np.sum((target - rows[[*chosen, i]].mean(axis=0)) ** 2)) for i in rest]
            chosen.append(rest[int(np.argmin(gaps))])
        assert sketch.herd(pool, 8).tolist() == chosen

    def test_herding_covers_the_minority_where_the_best_ones_do_not(self) -> None:
        private = np.concatenate(clusters(1, (60, 20)))
        pool = np.concatenate(clusters(2, (30, 30, 30)))
        sketch = self.of(private, std=0.3)
        kinds = np.repeat([0, 1, 2], 30)
        herd = kinds[sketch.herd(pool, 12)]
        top = kinds[np.argsort(-sketch.mean_scores(pool))[:12]]
        assert set(top) == {0}
        assert (herd == 1).sum() in (2, 3, 4)
        assert (herd == 2).sum() == 0
        chosen = pool[sketch.herd(pool, 12)]
        assert sketch.squared_mmd(chosen) < 0.5 * sketch.squared_mmd(pool[:12])

    def test_herding_a_small_pool_takes_it_all(self) -> None:
        pool = np.concatenate(clusters(2, (3, 2)))
        assert sorted(self.of(pool).herd(pool, 99).tolist()) == [0, 1, 2, 3, 4]

    def test_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        sketch = self.of(np.concatenate(clusters(1, (5, 5))), std=0.2)
        sketch.save(tmp_path)
        again = Sketch.load(tmp_path)
        assert again.query == sketch.query
        assert np.array_equal(again.total, sketch.total)
        assert (again.num_users, again.noise_std) == (10.0, 0.2)
        with pytest.raises(RunDirectoryError, match="no readable sketch"):
            Sketch.load(tmp_path / "nowhere")

    def test_combining(self) -> None:
        assert Sketch.combine(self.query, []) is None
        assert Sketch.combine(self.query, [SumOfUsers(np.ones(4), 0.0, 1.0)]) is None
        releases = [SumOfUsers(np.ones(4), 3, 3.0), SumOfUsers(np.ones(4), 4, 4.0)]
        both = Sketch.combine(self.query, releases)
        assert both is not None
        assert (both.num_users, both.noise_std) == (7.0, 5.0)
        assert both.total.tolist() == [2.0] * 4


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"refine": "train"}, "refine"),
            ({"objective": "variance"}, "objective"),
            ({"refinement_rounds": -1}, "refinement-rounds"),
            ({"num_candidates": 0}, "num-candidates"),
            ({"variations": 0}, "variations"),
            ({"mask_fraction": 0.0}, "mask-fraction"),
            ({"mask_steps": 0}, "mask-steps"),
            ({"generator": "http://localhost:8000/v1"}, "training-model"),
            ({"generator": "HTTP://localhost:8000/v1"}, "training-model"),
        ],
    )
    def test_bad_ones_are_named(self, config: Builder, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            config(**changes)

    def test_a_server_suffices_where_nothing_is_trained(self, config: Builder) -> None:
        url = "http://localhost:8000/v1"
        assert config(generator=url, refine="evolution").model_to_train == ""
        assert config(generator=url, refinement_rounds=0).needs_training is False

    def test_defaults(self) -> None:
        ours = KernelSketchConfig(epsilon=1.0)
        assert (ours.num_rounds, ours.checkpoint, ours.objective) == (1, "sketch-mmd", "witness")
        assert (ours.num_features, ours.max_samples) == (4096, 64)
