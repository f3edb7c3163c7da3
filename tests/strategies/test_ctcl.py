"""CTCL end to end in one process: real models, real Flower messages, both phases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.training import LocalTraining
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import read_json_lines
from flower_privsyn.generation.topics import load_topics, quotas
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.privacy.mechanisms import GRID
from flower_privsyn.progress import Progress
from flower_privsyn.strategies import CTCL, CTCLConfig
from flower_privsyn.strategies.more_text import MoreText, write_more
from flower_privsyn.testing import HashEmbedder, LoopbackGrid, hash_embedder
from flower_privsyn.training.local import LocalModel
from tests.support.federation import training_nodes
from tests.support.probe import Killed, dying_in
from tests.support.run_files import contents, lines, release, releases
from tests.support.small_runs import small_training
from tests.support.topics import documents, write_topics

Builder = Callable[..., Any]


@pytest.fixture(scope="session")
def topics_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("topics"))


@pytest.fixture
def config(llama: Path, topics_file: Path, tmp_path: Path) -> Callable[..., CTCLConfig]:
    """Settings of a small run without noise; keyword arguments replace them."""
    return small_training(
        CTCLConfig,
        tmp_path / "run",
        noises=("noise_multiplier", "first_noise_multiplier"),
        model=str(llama),
        topics=str(topics_file),
        num_topics=6,
        num_rounds=3,
        min_separation=2,
        num_nodes=2,
        server_momentum=0.0,
        max_samples=4,
        max_new_tokens=8,
        synthetic_samples=24,
    )


@pytest.fixture
def people() -> Users:
    """Six users; most write about rivers (the first subject) and about doctors (the second)."""
    found = documents(120, seed=5, words=3)
    rows = []
    for user, subjects in enumerate(([0], [0, 1], [1], [0, 0, 2], [0, 1, 1], [])):
        rows += [(f"user-{user}", found[6 * (3 * user + k) + s]) for k, s in enumerate(subjects)]
        rows += [] if subjects else [(f"user-{user}", "")]
    return Users.from_rows(rows)


def start(
    config: CTCLConfig,
    people: Users,
    tmp_path: Path,
    *,
    num_nodes: int = 2,
    **grid: Any,
) -> tuple[CTCL, LoopbackGrid]:
    def app(load: Any) -> Any:
        return create_client_app(
            load,
            embedder=hash_embedder,
            cache_directory=tmp_path / "cache",
            trainer=LocalTraining(),
        )

    strategy = CTCL(config, embedder=HashEmbedder())
    nodes = training_nodes(people, num_nodes=num_nodes, app=app, **grid)
    strategy.start(nodes)
    return strategy, nodes


def clipped_update(model: LocalModel, samples: Any, *, user: int, **given: Any) -> np.ndarray:
    """What a user's training in round 2 adds to the sum, in clip norms."""
    update = model.update(
        samples,
        learning_rate=0.5,
        epochs=1,
        batch_size=4,
        max_steps=64,
        seed=[0, 2, *f"user-{user}".encode()],
        **given,
    )
    assert update is not None
    return np.asarray(update * min(1.0, 0.05 / np.linalg.norm(update)) / 0.05)


class TestAWholeRun:
    def test_histogram_updates_and_texts_are_what_the_paper_says(
        self, config: Builder, people: Users, tmp_path: Path, llama: Path, topics_file: Path
    ) -> None:
        ours = config(sampling="full", num_rounds=2, trainable="full")
        strategy, _ = start(ours, people, tmp_path)
        topics = load_topics(str(topics_file)).at(6)
        mine = topics.nearest(HashEmbedder().embed(people.texts))
        # Without noise: everybody's shares, added up.
        shares = np.zeros(6)
        for user in range(6):
            own = mine[
                [o == user and bool(t) for o, t in zip(people.owners, people.texts, strict=True)]
            ]
            shares += np.bincount(own, minlength=6) / max(1, len(own))
        assert np.allclose(release(strategy.run.path, 1), shares, atol=10 * GRID)
        # The update is that of users who train on (condition, document) alone.
        model = LocalModel(TrainableModel(name=str(llama)))
        before = [model.encode(topics.conditions())[topic] for topic in mine.tolist()]
        total = np.zeros(model.dimension)
        for user in range(5):
            places = np.flatnonzero(people.owners == user)
            samples = model.encode([people.texts[place] for place in places])
            total += clipped_update(
                model,
                [
                    model.after_condition(before[place], sample)
                    for place, sample in zip(places, samples, strict=True)
                ],
                given=[len(before[place]) for place in places],
                user=user,
            )
        assert np.allclose(release(strategy.run.path, 2), total, atol=1e-5)
        # Texts: exactly as many of each topic as the histogram says.
        texts = list(read_json_lines(strategy.run.path / "synthetic.jsonl"))
        wanted = quotas(release(strategy.run.path, 1), 24)
        told = Counter(int(text["parent"][0].removeprefix("topic:")) for text in texts)
        assert [told[topic] for topic in range(6)] == wanted.tolist()
        assert len({text["text"] for text in texts}) == len(texts) == 24
        assert (strategy.run.path / "models/final/config.json").is_file()
        described = json.loads((strategy.run.path / "topics.json").read_text())
        assert (strategy.run.path / "topics.json").stat().st_mode & 0o777 == 0o600
        assert described["conditions"] == topics.conditions()
        assert np.allclose(described["weights"], shares, atol=10 * GRID)

    def test_a_condition_is_given_and_never_predicted(self, llama: Path) -> None:
        model = LocalModel(TrainableModel(name=str(llama)))
        condition, sample = model.encode(["Keywords: river\nDocument:\n", "The river sings."])
        row = model.after_condition(condition, sample)
        begin, end = [1], [2]
        assert row == [*condition, *sample[len(begin) :], *end]
        settings: dict[str, Any] = {"learning_rate": 0.5, "epochs": 1, "batch_size": 1}
        whole = model.update([row], given=[len(condition)], **settings)
        # Nothing is left to predict where the condition fills the row.
        assert model.update([row], given=[len(row)], **settings) is None
        assert model.update([row], given=[1], **settings) is not None
        assert whole is not None
        model._begin_anew()
        loss = float(model._loss([(row, len(condition))]).detach())
        with torch.no_grad():
            scores = model._model(input_ids=torch.tensor([row])).logits[0].log_softmax(-1)
        expected = -scores[range(len(condition) - 1, len(row) - 1), row[len(condition) :]].mean()
        assert loss == pytest.approx(float(expected), rel=1e-5)

    def test_without_a_histogram_public_shares_take_its_place(
        self, config: Builder, people: Users, tmp_path: Path, topics_file: Path
    ) -> None:
        settings = {"sampling": "full", "min_users": 1}
        with pytest.raises(Killed):
            start(config(**settings), people, tmp_path, tamper=dying_in(1))
        strategy, _ = start(config(**settings, resume=True), people, tmp_path)
        summary = strategy.run.state["summary"]
        assert summary["topics_by"] == "public text, as the histogram was lost"
        texts = list(read_json_lines(strategy.run.path / "synthetic.jsonl"))
        told = Counter(text["parent"][0] for text in texts)
        assert [told[f"topic:{topic}"] for topic in range(6)] == [4] * 6
        queries = [line["query"] for line in releases(strategy.run.path)]
        assert queries[1:] == ["conditional_delta"] * 2


class TestTheBudget:
    def test_the_papers_ten_for_the_histogram(self, config: Builder) -> None:
        ours = config(epsilon=1.0, num_rounds=13, delta=1e-5, first_noise_multiplier=10.0)
        histogram, _ = plan_of(ours, 500).phases
        assert histogram.noise_multiplier == 10.0
        with pytest.raises(ConfigError, match="epsilon 0.1 is spent by the releases whose noise"):
            plan_of(config(epsilon=0.1, first_noise_multiplier=10.0, delta=1e-5), 500)


def plan_of(config: CTCLConfig, population: int) -> Any:
    from flower_privsyn.privacy.calibrated import calibrated
    from flower_privsyn.run.plan import plan_of as planned

    plan = planned(CTCL(config).method, config, population=population)
    return calibrated(plan, epsilon=config.epsilon)


def test_without_keywords_documents_are_trained_on_alone(
    config: Builder, people: Users, tmp_path: Path, llama: Path
) -> None:
    strategy, _ = start(
        config(keywords=False, sampling="full", num_rounds=2, trainable="full"), people, tmp_path
    )
    model = LocalModel(TrainableModel(name=str(llama)))
    total = np.zeros(model.dimension)
    for user in range(5):
        own = [people.texts[place] for place in np.flatnonzero(people.owners == user)]
        samples = [[*sample, 2] for sample in model.encode(own)]
        total += clipped_update(model, samples, user=user)
    assert np.allclose(release(strategy.run.path, 2), total, atol=1e-5)
    written = list(read_json_lines(strategy.run.path / "synthetic.jsonl"))
    assert len(written) == 24
    assert json.loads((strategy.run.path / "topics.json").read_text())["conditions"] == [""] * 6


class TestAfterwards:
    def test_more_texts_of_a_run_are_free(
        self, config: Builder, people: Users, tmp_path: Path
    ) -> None:
        run = start(config(), people, tmp_path)[0].run
        before = contents(run.path)

        def write(count: int, **changes: Any) -> list[dict[str, Any]]:
            settings = MoreText.of(run, changes)
            written = write_more(run, settings, num_samples=count, seed=1, progress=Progress())
            assert (written.kind, written.texts) == ("topics", count)
            return lines(written.path)

        first = write(10)
        assert write(40)[:10] == first
        with pytest.raises(ConfigError, match='"chat" is not for the generator that the run has'):
            write(50, generator_interface="chat")
        told = Counter(int(text["parent"][0].removeprefix("topic:")) for text in write(40))
        wanted = quotas(release(run.path, 1), 40)
        assert [told[topic] for topic in range(6)] == wanted.tolist()
        assert {text["text"] for text in first}.isdisjoint(
            text["text"] for text in read_json_lines(run.path / "synthetic.jsonl")
        )
        after = contents(run.path)
        assert {name: after[name] for name in before} == before

    def test_other_topics_are_refused(self, config: Builder, people: Users, tmp_path: Path) -> None:
        with pytest.raises(Killed):
            start(config(), people, tmp_path, tamper=dying_in(1))
        path = tmp_path / "run" / "topics.json"
        path.write_text(path.read_text().replace("river", "brook"))
        with pytest.raises(ConfigError, match="are not those that the run in .* began with"):
            start(config(resume=True), people, tmp_path)


class TestBadInput:
    def test_the_histogram_is_no_turn(self, config: Builder) -> None:
        """Of 21 rounds 20 train: with ten groups each user trains twice."""
        ours = config(num_rounds=21, min_separation=10)
        *_, training = CTCL(ours).method.phases(40)
        assert (training.rounds, training.sampling.min_separation) == (20, 10)

    def test_before_anything_is_spent(
        self, config: Builder, people: Users, tmp_path: Path, bart: Path
    ) -> None:
        for changes, sentence in (
            ({"num_topics": 5}, "num-topics must be one of 3, 6"),
            ({"topics": "bundled", "num_topics": 64}, "made with another embedding model"),
            ({"max_tokens": 250}, r"max-tokens = 250 and conditions of up to \d+ tokens are more"),
            ({"max_new_tokens": 250}, "max-new-tokens = 250 and conditions"),
            ({"model": str(bart), "keywords": False}, "keywords = false"),
            ({"noise_multiplier": 3.0, "first_noise_multiplier": None}, "first-noise-mult"),
        ):
            with pytest.raises(ConfigError, match=sentence):
                start(config(**changes), people, tmp_path)
            assert not (tmp_path / "run" / "ledger.jsonl").exists()
            import shutil

            shutil.rmtree(tmp_path / "run", ignore_errors=True)
