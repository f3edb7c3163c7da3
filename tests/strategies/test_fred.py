"""FreD: moments asked once, or in the paper's two rounds, and sets of text ranked by them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from flower_privsyn.cli import main
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.evaluation.distribution import gaussian_frechet
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    InsecureRandom,
    Release,
    release_epsilon,
)
from flower_privsyn.queries import Moments
from flower_privsyn.report import write_run_page
from flower_privsyn.run.method import SumOfUsers, need
from flower_privsyn.strategies import FreD, FreDConfig
from flower_privsyn.strategies._moments import MomentSketch
from flower_privsyn.testing import HashEmbedder, LoopbackGrid, flower_identity
from tests.support.federation import WORDS, asked, embedding_nodes, make_users, rounds_asked
from tests.support.probe import Killed, dying_in
from tests.support.run_files import release, releases
from tests.support.small_runs import small_run

Builder = Callable[..., Any]
Truth = tuple[MomentSketch, np.ndarray, dict[str, Any]]

#: Samples of users are cut to 64 words, so that each text here is one.
USERS = make_users(40, samples=3)


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture
def near(tmp_path: Path) -> str:
    """About courts, as the users."""
    return write(tmp_path / "near.jsonl", make_users(30, samples=2).texts)


@pytest.fixture
def far(tmp_path: Path) -> str:
    """About everything but courts."""
    chooser = np.random.default_rng(3)
    return write(
        tmp_path / "far.jsonl",
        [" ".join(chooser.choice(WORDS[8:], size=12)) for _ in range(60)],
    )


@pytest.fixture
def config(tmp_path: Path, public_file: Path) -> Callable[..., FreDConfig]:
    """Settings of a small run; keyword arguments replace them."""

    return small_run(
        FreDConfig, tmp_path / "run", num_nodes=2, moment_dimensions=4, public_text=str(public_file)
    )


def ranking(config: FreDConfig) -> FreD:
    return FreD(config, embedder=HashEmbedder())


@pytest.fixture(scope="module")
def truth(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[MomentSketch, np.ndarray, dict[str, Any]]:
    """A release without noise: what is read of it, its sum, and what the run says of it."""
    folder = tmp_path_factory.mktemp("fred")
    public = write(folder / "public.jsonl", make_users(80, samples=1).texts)
    strategy = ranking(
        FreDConfig(
            noise_multiplier=0.0,
            num_nodes=2,
            moment_dimensions=4,
            public_text=public,
            run_dir=str(folder / "run"),
            node_timeout=0.2,
            accept_noise=True,
        )
    )
    with flower_identity():
        strategy.start(embedding_nodes(USERS, folder))
    run = strategy.run
    return MomentSketch.load(run.path), release(run.path, 1), run.state["summary"]


def clipped(rows: np.ndarray, radius: float) -> np.ndarray:
    return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1) / radius)[:, None]


class TestOneRelease:
    def test_without_noise_is_the_moments_of_clipped_embeddings(self, truth: Truth) -> None:
        sketch, _, figures = truth
        space = sketch.space
        assert space.basis is not None
        rows = HashEmbedder().embed(USERS.texts).astype(np.float64)
        points = clipped(rows @ space.basis.T.astype(float) - space.centre, space.radius)
        assert np.allclose(sketch.mean, points.mean(axis=0), atol=1e-6)
        assert np.allclose(sketch.covariance, np.cov(points.T, bias=True), atol=1e-6)
        assert (sketch.count, sketch.noise_ratio) == (40, 0.0)
        # FreD of the users' own text is nothing, and symmetric numbers stay symmetric.
        assert sketch.frechet(rows.astype(np.float32)) < 1e-6
        assert np.array_equal(sketch.projected, sketch.projected.T)
        assert np.linalg.eigvalsh(sketch.projected).min() >= -1e-12
        assert figures["trace"] == pytest.approx(points.var(axis=0).sum(), rel=1e-4)
        # Of other texts it is the distance of both Gaussians.
        others = HashEmbedder().embed([" ".join(WORDS[n:]) for n in range(20)])
        points = space.points(others)
        expected = gaussian_frechet(
            points.mean(axis=0), np.cov(points.T, bias=True), sketch.mean, sketch.covariance
        )
        assert sketch.frechet(others) == pytest.approx(expected)

    def test_the_nearer_set_comes_first(
        self, federation: Builder, config: Builder, near: str, far: str
    ) -> None:
        mixed = f"50% {near} + 50% {far}"
        strategy = ranking(config(epsilon=20.0, candidates=f"{far}; {mixed}; {near}"))
        strategy.start(federation(USERS))
        assert (strategy.run.path / "moments.npz").stat().st_mode & 0o777 == 0o600
        found = strategy.run.state["summary"]["ranking"]
        assert [one["name"] for one in found] == [near, mixed, far]
        assert [one["texts"] for one in found] == [60, 120, 60]
        assert found[0]["fred"] < found[1]["fred"] < found[2]["fred"]
        assert all(one["mean_part"] <= one["fred"] for one in found[1:])
        assert sum(one["nearest"] for one in found) == pytest.approx(1.0)
        page = write_run_page(strategy.run, strategy.run.path.with_suffix(".html")).read_text()
        assert "Which text is nearest" in page
        assert page.index(f">{near}<") < page.index(f">{far}<")

    def test_several_releases_are_composed_and_averaged(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = ranking(config(num_rounds=3, epsilon=3.0))
        strategy.start(federation(USERS))
        charged = releases(strategy.run.path)
        assert charged[-1]["epsilon_release"] == pytest.approx(3.0, rel=1e-3)
        sketch = MomentSketch.load(strategy.run.path)
        w1 = strategy.config.questions()[0].weights[1]
        std = charged[0]["noise_multiplier"] * np.sqrt(3) / (3 * 40)
        assert sketch.mean_noise == pytest.approx(sketch.space.radius * std / w1)

    def test_records_whose_number_is_not_public_are_counted(
        self, federation: Builder, config: Builder
    ) -> None:
        rows = [(USERS.user_ids[o], t) for o, t in zip(USERS.owners, USERS.texts, strict=True)]
        users = Users.from_rows([*rows, *((f"silent-{n}", "") for n in range(40))])
        strategy = ranking(config(noise_multiplier=0.0, unit="record"))
        strategy.start(federation(users))
        counted = MomentSketch.load(strategy.run.path)
        assert counted.count == pytest.approx(len(rows), abs=1e-6)
        assert counted.frechet(HashEmbedder().embed(USERS.texts)) < 1e-6

    @pytest.mark.parametrize("multiplier", [3.0, 30.0])
    def test_the_noise_has_the_size_that_is_said(self, truth: Truth, multiplier: float) -> None:
        """Standard deviations of mean and covariance, off the diagonal less by sqrt(2).

        And the covariance is right on average, also where what the noise adds to the square of the
        mean stands out.
        """
        exact, total, _ = truth
        query = Moments(radius=exact.space.radius)
        mechanism = GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=1.0)
        random = InsecureRandom(5)
        means, diagonal, others, variances = [], [], [], []
        for _ in range(400):
            values = mechanism.release(total, random=random)
            noisy = SumOfUsers(values, 40.0, mechanism.standard_deviation)
            found = need(MomentSketch.of(exact.space, [query], [noisy]))
            variances.append(np.diag(found.covariance))
            second = found.covariance + np.outer(found.mean, found.mean)
            second -= exact.covariance + np.outer(exact.mean, exact.mean)
            second -= found.mean_noise**2 * np.eye(4)
            means.append(found.mean - exact.mean)
            diagonal.append(np.diag(second))
            others.append(second[np.triu_indices(4, k=1)])
        # Four standard errors of as many numbers.
        assert np.std(means) == pytest.approx(found.mean_noise, rel=0.08)
        assert np.std(diagonal) == pytest.approx(found.covariance_noise, rel=0.08)
        assert np.std(others) == pytest.approx(found.covariance_noise / np.sqrt(2), rel=0.08)
        if multiplier > 10:  # a fifth of what the mean's noise would add: four standard errors
            added = found.mean_noise**2
            assert np.mean(variances) == pytest.approx(
                np.diag(exact.covariance).mean(), abs=0.2 * added
            )


class TestTwoRounds:
    def two_rounds(self, config: Builder, **changes: Any) -> FreDConfig:
        return config(**{"estimator": "two-rounds", "num_rounds": 2, **changes})

    def test_as_in_the_paper(self, federation: Builder, config: Builder) -> None:
        grid = federation(USERS)
        strategy = ranking(self.two_rounds(config, noise_multiplier=0.0, moment_radius=0.9))
        strategy.start(grid)
        sketch = MomentSketch.load(strategy.run.path)
        space = sketch.space
        rows = HashEmbedder().embed(USERS.texts).astype(np.float64)
        points = clipped(rows @ space.basis.T.astype(float) - space.centre, 0.9)
        about = clipped(points - points.mean(axis=0), 0.9)
        assert np.allclose(sketch.mean, points.mean(axis=0), atol=1e-6)
        assert np.allclose(sketch.covariance, about.T @ about / len(about), atol=1e-3)
        assert sketch.frechet(rows.astype(np.float32)) < 1e-4
        shifts = [m.content["privsyn.broadcast"].keys() for m in asked(grid)]
        assert [("shift" in keys) for keys in shifts] == [False, False, True, True]
        # The noisy mean is a release.
        (kept,) = strategy.run.path.glob("checkpoint-*.npz")
        assert kept.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(("multiplier", "of_a_record"), [(2.0, 4.0), (1e6, 1e6)])
    def test_records_are_counted_and_the_ledger_states_a_users_epsilon(
        self, federation: Builder, config: Builder, multiplier: float, of_a_record: float
    ) -> None:
        strategy = ranking(
            self.two_rounds(
                config,
                noise_multiplier=multiplier,
                unit="record",
                max_samples=4,
            )
        )
        strategy.start(federation(USERS))
        charged = releases(strategy.run.path)
        assert [line["l2_sensitivity"] for line in charged] == [4.0, 4.0]
        user = {Release(noise_multiplier=multiplier, sampling=FullParticipation()): 2}
        # Of a user with more samples than count, another takes the place of one that is gone.
        record = {Release(noise_multiplier=of_a_record, sampling=FullParticipation()): 2}
        assert charged[-1]["epsilon_release"] == pytest.approx(release_epsilon(user, delta=3e-6))
        figures = strategy.run.state["summary"]
        assert figures["epsilon_of_a_record"] == pytest.approx(release_epsilon(record, delta=3e-6))
        assert figures["count"] >= 1  # released, with noise

    def test_a_record_is_charged_as_its_user_is_under_secure_aggregation(
        self,
        federation: Builder,
        config: Builder,
        node_state: Path,
    ) -> None:
        """Without the noise that the colluding may take out, and with the round that was lost."""

        def lose(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type != secure_wire.AGREE:
                return [reply]
            late = secure_wire.unpack(secure_wire.Asked, request).round == 2
            return [] if late and reply.metadata.src_node_id in (1, 2) else [reply]

        strategy = ranking(
            config(
                num_rounds=3,
                num_nodes=6,
                noise_multiplier=2.0,
                unit="record",
                max_samples=4,
                secure_aggregation=True,
                least_nodes=5,
                colluding_nodes=2,
            )
        )
        strategy.start(federation(USERS, num_nodes=6, tamper=lose))
        run = strategy.run
        assert (run.rounds_with_outcome("released"), run.rounds_with_outcome("lost")) == (
            [1, 3],
            [2],
        )
        added = [one.noise_std for one in strategy.method.place.releases()]
        assert added == pytest.approx([8.0 * math.sqrt(6 / 3)] * 2)
        record = {Release(noise_multiplier=8.0 / 2, sampling=FullParticipation()): 3}
        assert run.state["summary"]["epsilon_of_a_record"] == pytest.approx(
            release_epsilon(record, delta=3e-6)
        )

    def test_without_a_covariance_nothing_is_compared(
        self, federation: Builder, config: Builder
    ) -> None:
        changes = {"noise_multiplier": 1.0}
        with pytest.raises(Killed):
            ranking(self.two_rounds(config, **changes)).start(federation(USERS, tamper=dying_in(2)))
        with pytest.raises(RunDirectoryError, match="lacks a release.*another round"):
            ranking(self.two_rounds(config, **changes, resume=True)).start(federation(USERS))


class TestResuming:
    def test_candidates_may_be_others_and_the_radius_may_not(
        self, federation: Builder, config: Builder, near: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: Any) -> None:
            raise Killed

        strategy = ranking(config())
        with monkeypatch.context() as patched:
            patched.setattr(MomentSketch, "save", die)
            with pytest.raises(Killed):
                strategy.start(federation(USERS))
        with pytest.raises(ConfigError, match="moment-radius"):
            ranking(config(moment_radius=0.5, resume=True)).start(LoopbackGrid(lambda *_: None))
        again = ranking(config(candidates=near, resume=True))
        again.start(federation(USERS))
        assert [one["name"] for one in again.run.state["summary"]["ranking"]] == [near]
        assert len(releases(again.run.path)) == 1


class TestTheCommand:
    @pytest.fixture
    def released(
        self, federation: Builder, config: Builder, monkeypatch: pytest.MonkeyPatch
    ) -> Path:
        monkeypatch.setattr(
            "flower_privsyn.evaluation.run.load_embedder", lambda *_, **__: HashEmbedder()
        )
        strategy = ranking(config(epsilon=20.0))
        strategy.start(federation(USERS))
        return strategy.run.path

    def test_ranks_any_sets_for_nothing(
        self, released: Path, near: str, far: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder, run = Path(near).parent / "texts", Path(near).parent / "another"
        folder.mkdir()
        (folder / "a.txt").write_text(" ".join(WORDS[8:] * 20))
        run.mkdir()
        (run / "synthetic.jsonl").write_text(Path(near).read_text())
        (run / "ledger.jsonl").write_text("{}")
        before = (released / "ledger.jsonl").read_bytes()
        sets = [far, str(folder), str(run), f"20% {near} + 80% {far}"]
        asks = ["inspect", str(released), "--rank", *sets]
        assert main([*asks, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert {one["name"] for one in said["ranking"]} == set(sets)
        assert said["ranking"][0]["name"] == str(run)
        assert said["noise_ratio"] > 0
        assert main(asks) == 0
        shown = capsys.readouterr().out
        assert "Nearest to the users" in shown
        assert "Nothing was spent." in shown
        assert (released / "ledger.jsonl").read_bytes() == before


class TestBadInput:
    def test_more_dimensions_than_the_users_allow(
        self, federation: Builder, config: Builder
    ) -> None:
        grid = federation(USERS)
        changes = {"epsilon": 4.0, "moment_dimensions": 12}
        with pytest.raises(
            ConfigError,
            match="moment-dimensions = 12 over .* accept-noise = true .* nothing was spent",
        ):
            ranking(config(accept_noise=False, **changes)).start(grid)
        assert rounds_asked(grid) == []
