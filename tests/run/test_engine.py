"""The private path: noise, its grid, the ledger, sampling, and what leaves a client."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Context, Message
from scipy import stats

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.messages import wire
from flower_privsyn.privacy import InsecureRandom
from flower_privsyn.privacy.mechanisms import to_grid
from flower_privsyn.strategies import PrivateSumStrategy
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.federation import make_users, silent_users
from tests.support.probe import Probe, cohort_sizes
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


def fits(sizes: npt.NDArray[np.int_], *, users: int, rate: float) -> bool:
    """Whether these are plausible sizes of independent cohorts; one honest run in 10^5 is not."""
    total = stats.binomtest(int(sizes.sum()), users * len(sizes), rate).pvalue
    spread = ((sizes - users * rate) ** 2).sum() / (users * rate * (1 - rate))
    law = stats.chi2(len(sizes))
    return min(total, 2 * law.cdf(spread), 2 * law.sf(spread)) > 1e-5 / 3


class TestNoise:
    def test_released_noise_has_the_stated_law(self, federation: Builder, config: Builder) -> None:
        # A million draws through real messages, without any signal.
        strategy = Probe(
            config(noise_multiplier=2.31, num_rounds=20, max_samples=8), candidates=50_000
        )
        strategy.start(federation(silent_users(4)))
        noise = np.stack([release.values for release in strategy.released])
        std = 2.31 * 8
        assert noise.shape == (20, 50_000)
        assert {release.noise_std for release in strategy.released} == {std}
        assert noise.std() == pytest.approx(std, rel=0.0028)  # four standard errors
        assert abs(noise.mean()) < 4 * std / 1000
        rounds = np.corrcoef(noise)[np.triu_indices(20, 1)]
        assert np.abs(rounds).max() < 5 / math.sqrt(50_000)
        neighbours = np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]
        assert abs(neighbours) < 4 / 1000

    def test_insecure_randomness_is_stamped(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = Probe(config(), random=InsecureRandom(0))
        strategy.start(federation())
        line = releases(tmp_path / "run")[-1]
        assert (line["private"], line["epsilon_release"]) == (False, None)


class TestTheGrid:
    def test_sums_that_may_leave_the_exact_numbers_are_refused_before_anybody_is_asked(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = Probe(config(noise_multiplier=1.0, max_samples=2**22))
        with pytest.raises(ConfigError, match=r"for 6 users, .* lets the sum reach 2"):
            strategy.start(federation(make_users(6)))
        assert [line["event"] for line in lines(tmp_path / "run/ledger.jsonl")] == ["opened"]

    def test_a_node_refuses_them_whatever_the_server_says(
        self,
        federation: Builder,
        config: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("flower_privsyn.run.strategy.LARGEST_SUM", math.inf)
        strategy = Probe(config(noise_multiplier=1.0, max_samples=2**22, num_rounds=1))
        with pytest.raises(FederationError, match="two rounds in a row were lost"):
            strategy.start(federation(make_users(6)))
        refused = wire.words_of(wire.ClientErrorCode.BAD_REQUEST)
        assert sum(line.get(refused, 0) for line in lines(tmp_path / "run/metrics.jsonl")) == 4
        assert strategy.released == []

    def test_releases_are_multiples_of_the_grid_for_the_owner_alone(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = Probe(config(noise_multiplier=1.0, num_rounds=1))
        strategy.start(federation(make_users(6)))
        path = tmp_path / "run/rounds/0001/release.npy"
        assert path.stat().st_mode & 0o777 == 0o600
        steps = to_grid("the release", np.load(path))
        assert len(np.unique(steps & 1023)) > 10  # noise has all digits, and no more


class TestLedgerComesFirst:
    def test_line_is_on_disk_before_the_release_is_used(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        strategy = Probe(config())
        seen: list[int] = []
        strategy.method.before_update = lambda: seen.append(len(releases(tmp_path / "run")))
        strategy.start(federation())
        assert seen == [1, 2, 3]

    def test_round_is_announced_before_any_message(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        announced: list[int] = []

        def watch(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type != wire.PREPARE:
                events = [line["event"] for line in lines(tmp_path / "run" / "ledger.jsonl")]
                announced.append(events.count("started") - events.count("release"))
            return [reply]

        Probe(config()).start(federation(tamper=watch))
        assert announced == [1] * 6

    def test_only_one_function_sees_the_raw_sum(self) -> None:
        folder = Path(inspect.getfile(PrivateSumStrategy)).parent
        readers = {
            (file.name, function.name)
            for file in folder.rglob("*.py")
            for function in ast.walk(ast.parse(file.read_text()))
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and (
                node.attr in {"unpack_answer", "collect", "release_steps"}
                or (node.attr == "total" and ast.unparse(node.value) in {"answer", "collected"})
            )
        }
        assert readers == {("aggregation.py", "collect"), ("strategy.py", "_release")}
        tree = ast.parse(inspect.getsource(inspect.getmodule(PrivateSumStrategy)))  # type: ignore[arg-type]
        returned = [
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name == "_release"
            for node in ast.walk(function)
            if isinstance(node, ast.Return | ast.Yield)
            and node.value is not None
            and any(isinstance(n, ast.Name) and n.id == "collected" for n in ast.walk(node.value))
        ]
        assert returned == []

    def test_the_path_cannot_be_replaced_by_a_method(self) -> None:
        for name in ("_release", "configure_train", "aggregate_train", "start"):
            own = {name: lambda self: None}
            with pytest.raises(TypeError, match=name):
                type("Loose", (Probe,), own)
            with pytest.raises(TypeError, match=name):
                type("Mixed", (type("Loose", (), own), Probe), {})


class TestSampling:
    def sampled(self, config: Builder, sampling: str = "poisson", **changes: Any) -> Probe:
        """Charged by Rényi divergence, which is quick: how much is charged is tested elsewhere."""
        values = {"noise_multiplier": 1.0, "accountant": "rdp", **changes}
        return Probe(config(sampling=sampling, **values))

    def test_poisson_cohorts_follow_the_rate(self, federation: Builder, config: Builder) -> None:
        strategy = self.sampled(config, sampling_rate=0.3, num_rounds=40)
        grid = federation(silent_users(200), num_nodes=4)
        strategy.start(grid)
        sizes = cohort_sizes(grid, 40)
        assert fits(sizes, users=200, rate=0.3), sizes
        # The test of the test: sizes of another rate, of one coin for all rounds, of a fixed size.
        assert not fits(sizes, users=200, rate=0.4)
        assert not fits(np.full(40, sizes[0]), users=200, rate=sizes[0] / 200)
        assert not fits(np.full(40, 60), users=200, rate=0.3)
        assert {release.num_users for release in strategy.released} == {None}

    def test_equal_ids_on_many_nodes_flip_their_own_coins(
        self, config: Builder, tmp_path: Path
    ) -> None:
        # Twenty silos that number their two users alike.
        app = create_client_app(
            lambda context: silent_users(2),
            embedder=hash_embedder,
            cache_directory=tmp_path / "cache",
        )
        grid = LoopbackGrid(app, num_nodes=20)
        self.sampled(config, sampling_rate=0.5, num_rounds=30, num_nodes=20).start(grid)
        sizes = cohort_sizes(grid, 30)
        # Independent coins: variance 40 / 4 = 10; one coin for each id would give 200.
        assert sizes.var() < 30
        keys = [
            bytes(m.content.config_records["privsyn.request"]["sampling-key"])  # type: ignore[arg-type]
            for m in grid.requests
            if m.metadata.message_type != wire.PREPARE
        ]
        assert len(set(keys)) == len(keys) == 20 * 30

    def test_an_empty_poisson_cohort_still_releases_noise(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = self.sampled(config, sampling_rate=1e-9, num_rounds=1)
        grid = federation(num_nodes=2)
        strategy.start(grid)
        assert cohort_sizes(grid, 1).sum() == 0
        assert strategy.released[0].values.std() > 0

    def test_fixed_size_draws_exactly_that_many(self, federation: Builder, config: Builder) -> None:
        strategy = self.sampled(config, "fixed-size", sample_size=7, num_rounds=10, num_nodes=5)
        grid = federation(silent_users(23), num_nodes=5)
        strategy.start(grid)
        assert list(cohort_sizes(grid, 10)) == [7] * 10
        assert {release.num_users for release in strategy.released} == {None}
        line = releases(strategy.run.path)[-1]
        assert (
            line["sampling"].items()
            >= {"method": "fixed-size", "sample_size": 7, "population": 23}.items()
        )


class TestWhatLeavesAClient:
    def test_every_reply_is_the_sum_the_head_count_or_the_roster(
        self, federation: Builder, config: Builder
    ) -> None:
        grid = federation()
        Probe(config()).start(grid)
        assert len(grid.replies) == 2 + 2 * 3
        assert [wire.unexpected_records(reply) for reply in grid.replies] == [[]] * 8

    def test_exceptions_leave_as_codes(
        self,
        config: Builder,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        def load(context: Context) -> Users:
            raise RuntimeError("dear diary, the secret of user-7")

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache")
        grid = LoopbackGrid(app)
        with pytest.raises(FederationError) as caught:
            Probe(config()).start(grid)
        assert {reply.error.code for reply in grid.replies} == {1000}
        assert [wire.unexpected_records(reply) for reply in grid.replies] == [[], []]
        everything = str(caught.value) + caplog.text + "".join(capfd.readouterr())
        everything += "".join(str(reply.error.reason) for reply in grid.replies)
        everything += "".join(path.read_text() for path in (tmp_path / "run").glob("*.json*"))
        assert "diary" not in everything

    def test_a_broken_node_stops_a_run_that_did_not_say_how_many_are_enough(
        self, config: Builder, tmp_path: Path
    ) -> None:
        def load(context: Context) -> Users:
            if context.node_config["partition-id"] == 0:
                raise ValueError("one bad record")
            return make_users(4)

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache")
        with pytest.raises(FederationError, match="1 of 2 nodes are not ready.*num-users"):
            Probe(config()).start(LoopbackGrid(app))
        strategy = Probe(config(num_users=4, run_dir=str(tmp_path / "enough")))
        strategy.start(LoopbackGrid(app))
        assert strategy.released[0].num_users == 4

    def test_empty_users_count_as_users(self, federation: Builder, config: Builder) -> None:
        users = Users.from_rows([("a", "court judge"), ("b", ""), ("c", "   "), ("d", "tax")])
        strategy = Probe(config(num_rounds=1, noise_multiplier=0.0))
        strategy.start(federation(users))
        assert strategy.released[0].num_users == 4
        assert strategy.released[0].values.sum() == 2
