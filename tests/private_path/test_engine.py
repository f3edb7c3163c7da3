"""The private path: noise, ledger, misbehaving nodes, interruptions, and what leaves a client."""

from __future__ import annotations

import ast
import inspect
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from flower_privsyn.client_apps import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import BudgetExceededError, ConfigError, FederationError
from flower_privsyn.evaluation.costs import run_costs
from flower_privsyn.messages import wire
from flower_privsyn.messages.packed import pack_steps
from flower_privsyn.node import NodeLedger
from flower_privsyn.privacy import InsecureRandom, PrivacyLedger
from flower_privsyn.privacy.grid import to_grid
from flower_privsyn.private_path import attendance, rounds
from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.runs import RunDirectory
from flower_privsyn.strategies import PrivateSumStrategy, ReleasedSum
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.federation import make_users, silent_users
from tests.support.probe import Killed, Probe, ProbeMethod, cohort_sizes
from tests.support.run_files import lines, releases

Builder = Callable[..., Any]


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

    def test_error_at_the_papers_noise_is_the_noise(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        users = make_users(60)
        clean = Probe(
            config(noise_multiplier=0.0, num_rounds=1, run_dir=str(tmp_path / "clean")),
            candidates=20_000,
        )
        clean.start(federation(users))
        noisy = Probe(
            config(noise_multiplier=11.3, num_rounds=2, run_dir=str(tmp_path / "noisy")),
            candidates=20_000,
        )
        noisy.start(federation(users))
        errors = np.concatenate([r.values - clean.released[0].values for r in noisy.released])
        assert clean.released[0].values.sum() == 180
        assert errors.std() == pytest.approx(11.3 * 8, rel=0.01)

    def test_two_runs_never_share_noise(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        drawn = []
        for name in ("a", "b"):
            strategy = Probe(
                config(noise_multiplier=1.0, num_rounds=1, run_dir=str(tmp_path / name))
            )
            strategy.start(federation(silent_users(2)))
            drawn.append(strategy.released[0].values)
        assert not np.intersect1d(*drawn).size

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
        with pytest.raises(
            ConfigError, match=r"for 6 users lets the sum reach 2.*choose a smaller"
        ):
            strategy.start(federation(make_users(6)))
        assert [line["event"] for line in lines(tmp_path / "run/ledger.jsonl")] == ["opened"]

    def test_a_node_refuses_them_whatever_the_server_says(
        self,
        federation: Builder,
        config: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("flower_privsyn.private_path.asked.LARGEST_SUM", math.inf)
        strategy = Probe(config(noise_multiplier=1.0, max_samples=2**22, num_rounds=1))
        with pytest.raises(FederationError, match="no round was released"):
            strategy.start(federation(make_users(6)))
        refused = f"error code {int(wire.ClientErrorCode.BAD_REQUEST)}"
        assert sum(line.get(refused, 0) for line in lines(tmp_path / "run/metrics.jsonl")) == 2
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
        assert readers == {("central.py", "collect"), ("engine.py", "_release")}
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


def steps(length: int, width: int, value: int = 0) -> np.ndarray:
    """An answer as it travels."""
    return pack_steps(np.full(length, value), width=width)


class TestNodesWhoseDataGrow:
    @pytest.fixture
    def growing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Nodes of 5, 6, ... users; the first has one more once the run has begun."""
        monkeypatch.setenv("PRIVSYN_NODE_STATE", str(tmp_path / "state"))
        monkeypatch.setenv("PRIVSYN_NODE_LEDGERS", str(tmp_path / "ledgers"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        come = [0]

        def load(context: Context) -> Users:
            node = int(context.node_config["partition-id"])
            return make_users(5 + node + (come[0] if node == 0 else 0))

        def app(message: Message, context: Context) -> Message:
            """Each message meets a process of its own."""
            fresh = create_client_app(
                load, embedder=hash_embedder, cache_directory=tmp_path / "cache"
            )
            reply = fresh(message, context)
            if context.node_config["partition-id"] == 0:
                come[0] = 1
            return reply

        def build(nodes: int, **more: Any) -> LoopbackGrid:
            configs = [
                {"partition-id": node, "num-partitions": nodes, "dataset": f"of-{node}"}
                for node in range(nodes)
            ]
            return LoopbackGrid(app, node_configs=configs, **more)  # type: ignore[arg-type]

        return build

    def test_take_no_further_part_and_are_not_charged(
        self, config: Builder, growing: Callable[..., Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """The server would leave out their answers, which they would have charged."""
        strategy = Probe(config(num_rounds=2, min_users=1, num_nodes=3))
        strategy.start(growing(3, is_simulation=False))
        assert [released.num_users for released in strategy.released] == [13, 13]
        assert [line["error code 1001"] for line in lines(strategy.run.metrics_file)] == [1, 1]
        assert "more users are on this node than when it was asked how many" in caplog.text
        assert "without some nodes: 1 x the client app does not understand" in caplog.text
        assert NodeLedger("of-0").account().charges == []
        assert len(NodeLedger("of-1").account().charges) == 2

    def test_are_in_a_sum_in_which_nobody_is_counted(
        self, config: Builder, growing: Callable[..., Any]
    ) -> None:
        """Every node answers for all of its users, however many others have announced."""
        secure = {"secure_aggregation": True, "num_nodes": 4, "colluding_nodes": 0}
        strategy = Probe(config(num_rounds=1, noise_multiplier=1e-3, **secure))
        strategy.start(growing(4))
        (released,) = strategy.released
        assert released.values.sum() == pytest.approx(3 * (5 + 6 + 7 + 8 + 1), abs=0.5)


class TestMisbehavingNodes:
    def run(
        self,
        federation: Builder,
        config: Builder,
        change: Callable[[Message, Message], list[Message]],
    ) -> tuple[Probe, dict[str, Any]]:
        def tamper(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type == wire.PREPARE or reply.metadata.src_node_id != 1:
                return [reply]
            return change(request, reply)

        strategy = Probe(config(num_rounds=1))
        strategy.start(federation(tamper=tamper))
        return strategy, lines(strategy.run.metrics_file)[0]

    def answer(
        self, request: Message, total: Any, num_users: Any = 6, name: str = "total"
    ) -> list[Message]:
        arrays = ArrayRecord()
        arrays[name] = Array(np.asarray(total))
        content = RecordDict(
            {"privsyn.answer": arrays, "privsyn.cohort": ConfigRecord({"num_users": num_users})}
        )
        return [Message(content, reply_to=request)]

    @pytest.mark.parametrize(
        ("total", "num_users", "reason"),
        [
            (np.full(20, np.nan), 6, "wrong type"),
            (np.zeros(20, np.int64), 6, "wrong type"),
            (steps(19, 5), 6, "wrong shape"),
            (steps(20, 4), 6, "wrong shape"),
            (steps(20, 8), 6, "wrong shape"),
            (steps(100, 1).ravel(), 6, "wrong shape"),
            (steps(20, 5), -1, "absurd head-count"),
            (steps(20, 5), 10**9, "absurd head-count"),
            (steps(20, 5), 7, "absurd head-count"),
            (steps(20, 5, 2**38), 6, "outside the bound of its head-count"),
            (steps(20, 5, -(2**38)), 6, "outside the bound of its head-count"),
            (steps(20, 5, 1), 0, "outside the bound of its head-count"),
        ],
    )
    def test_bad_answers_are_counted_and_left_out(
        self, federation: Builder, config: Builder, total: np.ndarray, num_users: int, reason: str
    ) -> None:
        strategy, metrics = self.run(
            federation, config, lambda request, _: self.answer(request, total, num_users)
        )
        assert metrics[f"rejected: {reason}"] == 1
        assert metrics["answers"] == 1
        assert strategy.released[0].num_users == 6

    @pytest.mark.parametrize("kind", ["archive", "cut", "pickled", "empty"])
    def test_bytes_that_are_no_array_are_counted_and_left_out(
        self, federation: Builder, config: Builder, kind: str
    ) -> None:
        """NumPy reads an archive of arrays without an error, and it is no array."""
        file = io.BytesIO()
        if kind == "archive":
            np.savez(file, total=steps(20, 5))
        elif kind == "pickled":
            np.save(file, np.array([{}], dtype=object), allow_pickle=True)
        else:
            np.save(file, steps(20, 5))
        data = {"cut": file.getvalue()[:-7], "empty": b""}.get(kind, file.getvalue())

        def unreadable(request: Message, _: Message) -> list[Message]:
            (sent,) = self.answer(request, steps(20, 5))
            sent.content.array_records["privsyn.answer"]["total"] = Array(
                dtype="uint8", shape=(20, 5), stype="numpy.ndarray", data=data
            )
            return [sent]

        strategy, metrics = self.run(federation, config, unreadable)
        assert metrics["rejected: unreadable answer"] == 1
        assert strategy.released[0].num_users == 6
        assert strategy.run.status == "finished"

    def test_extra_records_are_refused(self, federation: Builder, config: Builder) -> None:
        def chatty(request: Message, reply: Message) -> list[Message]:
            reply.content["metrics"] = MetricRecord({"loss": 0.3})
            return [reply]

        _, metrics = self.run(federation, config, chatty)
        assert metrics["rejected: unexpected records"] == 1

    def test_errors_missing_and_second_replies_are_counted(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        _, lost = self.run(federation, config, lambda request, reply: [])
        assert (lost["missing"], lost["answers"], lost["num_users"]) == (1, 1, 6)

    def test_error_reply(
        self, federation: Builder, config: Builder, caplog: pytest.LogCaptureFixture
    ) -> None:
        secret = Error(code=1000, reason="secret diary of user-3")
        _, metrics = self.run(
            federation, config, lambda request, _: [Message(secret, reply_to=request)]
        )
        assert metrics["error code 1000"] == 1
        assert "diary" not in json.dumps(metrics) + caplog.text

    def test_flowers_own_word_about_a_lost_node(self, federation: Builder, config: Builder) -> None:
        def lost(request: Message, reply: Message) -> list[Message]:
            unavailable = Message(Error(code=5, reason="node unavailable"), reply_to=request)
            unavailable.metadata.__dict__["_src_node_id"] = 999  # as the SuperLink's own replies
            return [unavailable]

        _, metrics = self.run(federation, config, lost)
        assert metrics["error of Flower or another code"] == 1
        assert (metrics["answers"], metrics["missing"], metrics["num_users"]) == (1, 0, 6)
        assert "rejected: not asked" not in metrics

    def test_a_reply_from_somebody_who_was_not_asked(
        self, federation: Builder, config: Builder
    ) -> None:
        def stranger(request: Message, reply: Message) -> list[Message]:
            reply.metadata.__dict__["_src_node_id"] = 999
            return [reply]

        _, metrics = self.run(federation, config, stranger)
        assert metrics["rejected: not asked"] == 1
        assert (metrics["answers"], metrics["missing"]) == (1, 1)

    def test_second_reply(self, federation: Builder, config: Builder) -> None:
        strategy, metrics = self.run(federation, config, lambda request, reply: [reply, reply])
        assert metrics["rejected: second reply"] == 1
        assert strategy.released[0].num_users == 12

    def test_replies_to_the_preparation_are_checked_too(
        self, federation: Builder, config: Builder
    ) -> None:
        def tamper(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type != wire.PREPARE:
                return [reply]
            roster = reply.content.config_records["privsyn.roster"]
            node = reply.metadata.src_node_id
            if node == 1:
                return [reply, reply]
            if node == 2:
                roster["embedder"] = "another"
            if node == 3:
                roster["num_users"] = -4
            return [] if node == 4 else [reply]

        strategy = Probe(config(num_rounds=1, num_nodes=5, num_users=4))
        strategy.start(federation(num_nodes=5, tamper=tamper))
        # Twelve users on five nodes: nodes 1 and 5 have three and two of them.
        assert strategy.released[0].num_users == 5

    def test_too_few_users_discard_the_round_at_no_charge(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        def tamper(request: Message, reply: Message) -> list[Message]:
            return [reply] if request.metadata.message_type == wire.PREPARE else []

        strategy = Probe(config(min_users=5))
        with pytest.raises(
            FederationError, match="rounds 1 and 2 were lost: 0 users on 0 of 2 nodes"
        ):
            strategy.start(federation(tamper=tamper))
        events = [line["event"] for line in lines(tmp_path / "run" / "ledger.jsonl")]
        assert events == ["opened", "started", "discarded", "started", "discarded"]
        assert strategy.released == []


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
        assert len(set(sizes)) > 5
        assert abs(sizes.sum() - 0.3 * 200 * 40) < 4 * math.sqrt(200 * 40 * 0.21)

    def test_equal_ids_on_many_nodes_flip_their_own_coins(
        self, config: Builder, tmp_path: Path
    ) -> None:
        # Forty silos that number their two users alike.
        app = create_client_app(
            lambda context: silent_users(2),
            embedder=hash_embedder,
            cache_directory=tmp_path / "cache",
        )
        grid = LoopbackGrid(app, num_nodes=40)
        self.sampled(config, sampling_rate=0.5, num_rounds=30, num_nodes=40).start(grid)
        sizes = cohort_sizes(grid, 30)
        # Independent coins: variance 80 / 4 = 20; one coin for each id would give 800.
        assert sizes.var() < 60
        keys = [
            bytes(m.content.config_records["privsyn.request"]["sampling-key"])  # type: ignore[arg-type]
            for m in grid.requests
            if m.metadata.message_type != wire.PREPARE
        ]
        assert len(set(keys)) == len(keys) == 40 * 30

    def test_single_user_nodes_are_asked_when_drawn_or_in_the_roll_call(
        self, federation: Builder, config: Builder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attendance, "ROLL_CALL", 1)
        strategy = self.sampled(config, sampling_rate=0.3, num_rounds=20, num_nodes=20)
        grid = federation(silent_users(20), num_nodes=20)
        strategy.start(grid)
        asked = [m for m in grid.requests if m.metadata.message_type != wire.PREPARE]
        drawn = cohort_sizes(grid, 20).sum()
        assert drawn < len(asked) <= drawn + 20
        assert abs(drawn - 120) < 4 * math.sqrt(400 * 0.21)

    def test_the_size_of_a_poisson_cohort_stays_out_of_the_run_directory(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = self.sampled(config, sampling_rate=0.5, num_rounds=4)
        strategy.start(federation(silent_users(60)))
        for line in releases(strategy.run.path):
            assert line["num_users"] is None
            assert line["expected_users"] == 30
        for row in lines(strategy.run.metrics_file):
            assert not {"num_users", "num_nodes", "answers", "missing"} & set(row)
        assert {release.num_users for release in strategy.released} == {None}
        state = strategy.run.round_state(1)
        assert state is not None
        assert state["num_users"] is None

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
        assert line["sampling"] == {"method": "fixed-size", "sample_size": 7, "population": 23}

    def test_a_node_cannot_answer_for_more_users_than_it_was_asked_for(
        self, federation: Builder, config: Builder
    ) -> None:
        def everyone(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type != wire.PREPARE and reply.metadata.src_node_id == 1:
                reply.content.config_records["privsyn.cohort"]["num_users"] = 12
            return [reply]

        # Twelve answers for a node that was asked for six of them are more than the ledger allows.
        strategy = self.sampled(config, "fixed-size", sample_size=6, num_rounds=1)
        strategy.start(federation(silent_users(24), tamper=everyone))
        assert len(strategy.released) == 1

    def test_noise_follows_the_clip_norm_of_the_round(
        self, federation: Builder, config: Builder, tmp_path: Path
    ) -> None:
        class Growing(ProbeMethod):
            @property
            def queries(self) -> tuple[Any, ...]:
                return (NearestNeighborHistogram(max_samples=2 + 6 * bool(self.released)),)

        strategy = Probe(
            config(noise_multiplier=1.0, num_rounds=2), candidates=40_000, method=Growing
        )
        strategy.start(federation(silent_users(3)))
        assert strategy.released[0].values.std() == pytest.approx(2.0, rel=0.02)
        assert strategy.released[1].values.std() == pytest.approx(8.0, rel=0.02)
        norms = [line["l2_sensitivity"] for line in releases(tmp_path / "run")]
        assert norms == [2.0, 8.0]

    def test_more_drawn_than_there_are(self, federation: Builder, config: Builder) -> None:
        with pytest.raises(ConfigError, match="sample-size = 13 is more than the 12 users"):
            Probe(config(sampling="fixed-size", sample_size=13)).start(federation())


class TestResume:
    @pytest.fixture
    def start(self, federation: Builder, config: Builder) -> Callable[..., Probe]:
        def run(
            *, resume: bool = False, tamper: Any = None, prepare: Any = None, **changes: Any
        ) -> Probe:
            strategy = Probe(config(resume=resume, **changes))
            if prepare:
                prepare(strategy)
            strategy.start(federation(tamper=tamper))
            return strategy

        return run

    def check(self, run: Path, *, interrupted: Sequence[int], epsilon: float = 4.0) -> None:
        charged = releases(run)
        assert [line["round"] for line in charged] == [1, 2, 3]
        assert [line["round"] for line in charged if line["interrupted"]] == list(interrupted)
        assert charged[-1]["epsilon_release"] <= epsilon * (1 + 1e-6)
        assert json.loads((run / "state.json").read_text())["status"] == "finished"

    def test_killed_while_clients_answer(self, start: Builder, tmp_path: Path) -> None:
        def die(request: Message, reply: Message) -> list[Message]:
            started = (
                sum(line["event"] == "started" for line in lines(tmp_path / "run" / "ledger.jsonl"))
                if (tmp_path / "run" / "ledger.jsonl").exists()
                else 0
            )
            if started == 2:
                raise Killed
            return [reply]

        with pytest.raises(Killed):
            start(tamper=die)
        assert len(releases(tmp_path / "run")) == 1
        strategy = start(resume=True)
        self.check(tmp_path / "run", interrupted=[2])
        assert [release.round_number for release in strategy.released] == [3]

    def test_killed_between_ledger_and_disk(
        self, start: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(run: Any, release: ReleasedSum) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(rounds, "store_release", die)
            with pytest.raises(Killed):
                start()
        strategy = start(resume=True)
        # The line was written as an ordinary release; the sum itself is gone for good.
        self.check(tmp_path / "run", interrupted=[])
        assert [release.round_number for release in strategy.released] == [2, 3]
        assert (
            json.loads((tmp_path / "run/rounds/0001/state.json").read_text())["outcome"]
            == "interrupted"
        )

    def test_killed_in_post_processing_uses_the_stored_release(
        self, start: Builder, tmp_path: Path
    ) -> None:
        def prepare(strategy: Probe) -> None:
            def die() -> None:
                if len(strategy.released) == 1:
                    raise Killed

            strategy.method.before_update = die

        with pytest.raises(Killed):
            start(prepare=prepare)
        stored = np.load(tmp_path / "run/rounds/0002/release.npy")
        strategy = start(resume=True)
        self.check(tmp_path / "run", interrupted=[])
        assert [release.round_number for release in strategy.released] == [2, 3]
        assert np.array_equal(strategy.released[0].values, stored)

    @pytest.mark.parametrize(
        ("step", "released"),
        [
            ("hold_metrics", None),
            ("store_release", False),
            ("following", True),
            ("finish_round", True),
            ("settle_metrics", True),
            ("unlink", True),
        ],
    )
    def test_killed_at_the_end_of_a_round_it_keeps_its_line(
        self,
        start: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        step: str,
        released: bool | None,
    ) -> None:
        """Between the charge and the line in `metrics.jsonl` of round 2, wherever it is killed."""
        path = tmp_path / "run"

        def die(*_: Any, **__: Any) -> None:
            if len(releases(path)) == 2:
                raise Killed

        def dying(owner: Any, name: str) -> None:
            done = getattr(owner, name)

            def instead(*args: Any, **kwargs: Any) -> Any:
                die()
                return done(*args, **kwargs)

            patch.setattr(owner, name, instead)

        with monkeypatch.context() as patch:
            if step == "store_release":
                dying(rounds, step)
            elif step == "following":
                dying(ProbeMethod, step)
            elif step == "unlink":
                # After the line is in its place, before the round lets go of it.
                line = path / "rounds" / "0002" / "metrics.json"
                unlink = Path.unlink

                def keep(file: Path, **options: Any) -> None:
                    if file == line:
                        raise Killed
                    unlink(file, **options)

                patch.setattr(Path, "unlink", keep)
            else:
                dying(RunDirectory, step)
            with pytest.raises(Killed):
                start()
        before = RunDirectory.open(path).metrics()
        assert [one["round"] for one in before] == ([1] if released is None else [1, 2])
        strategy = start(resume=True)
        self.check(path, interrupted=[])
        found = [(one["round"], one["released"]) for one in lines(path / "metrics.jsonl")]
        # One whose replies nobody had counted has a line all the same: epsilon has grown.
        assert found == [(1, True), (2, bool(released)), (3, True)]
        spent = [one["epsilon_release"] for one in lines(path / "metrics.jsonl")]
        assert spent == [one["epsilon_release"] for one in releases(path)]
        cost = run_costs(strategy.run)
        assert (cost.rounds, cost.lost_rounds) == ((2, 1) if released is None else (3, 0))
        assert not list(path.glob("rounds/*/metrics.json"))

    def test_killed_again_and_again_never_overspends(self, start: Builder, tmp_path: Path) -> None:
        def die(request: Message, reply: Message) -> list[Message]:
            if request.metadata.message_type != wire.PREPARE:
                raise Killed
            return [reply]

        for attempt in range(3):
            with pytest.raises(Killed):
                start(resume=attempt > 0, tamper=die)
        with pytest.raises(FederationError, match="no round was released.* 3 rounds were charged"):
            start(resume=True)
        metrics = lines(tmp_path / "run/metrics.jsonl")
        assert [(one["round"], one["released"]) for one in metrics] == [
            (1, False), (2, False), (3, False),
        ]  # fmt: skip
        charged = releases(tmp_path / "run")
        assert [(line["round"], line["interrupted"]) for line in charged] == [
            (1, True), (2, True), (3, True),
        ]  # fmt: skip
        assert charged[-1]["epsilon_release"] <= 4.0 * (1 + 1e-6)

    @pytest.mark.parametrize(
        ("damage", "sentence"),
        [
            ("removed", "lacks the line .* which rounds/0000/state.json states"),
            ("cut", "lacks the line .* which rounds/0002/state.json states"),
            ("cut by one round", "lacks the line .* which rounds/0003/metrics.json states"),
            ("cut by the round that died", "no line for round 3"),
        ],
    )
    def test_a_lost_ledger_stops_the_run(
        self, start: Builder, tmp_path: Path, damage: str, sentence: str
    ) -> None:
        from flower_privsyn.errors import LedgerError

        def prepare(strategy: Probe) -> None:
            def die() -> None:
                if len(strategy.released) == 2:
                    raise Killed

            strategy.method.before_update = die

        with pytest.raises(Killed):
            start(prepare=prepare)
        path = tmp_path / "run" / "ledger.jsonl"
        left = 0
        if damage == "removed":
            path.unlink()
        else:
            left = 3 if damage == "cut" else 5
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:left]))
        if left == 5:
            # A killed process says nothing in state.json; only its release is on the disk, with
            # the line of its round, which runs that were begun earlier do not have.
            (tmp_path / "run" / "state.json").unlink()
            if damage == "cut by the round that died":
                (tmp_path / "run" / "rounds" / "0003" / "metrics.json").unlink()
        before = path.read_bytes() if path.exists() else None
        with pytest.raises(LedgerError, match=sentence):
            start(resume=True)
        assert (path.read_bytes() if path.exists() else None) == before

    def test_a_finished_run_is_not_resumed(self, start: Builder) -> None:
        from flower_privsyn.errors import RunDirectoryError

        start()
        with pytest.raises(RunDirectoryError, match="finished"):
            start(resume=True)

    def test_changed_settings_are_refused(self, start: Builder, tmp_path: Path) -> None:
        with pytest.raises(FederationError):
            start(num_nodes=5)
        with pytest.raises(ConfigError, match="epsilon = 9.0 differs from the 4.0"):
            start(resume=True, num_nodes=5, epsilon=9.0)

    def test_another_strategy_does_not_go_on(
        self, config: Builder, federation: Builder, tmp_path: Path
    ) -> None:
        class Other(Probe):
            pass

        run = str(tmp_path / "run")
        with pytest.raises(FederationError):
            Probe(config(num_nodes=5, run_dir=run)).start(federation())
        with pytest.raises(ConfigError, match="was started by Probe and is resumed by Other"):
            Other(config(num_nodes=5, run_dir=run, resume=True)).start(federation())

    def test_the_ledger_refuses_a_round_beyond_the_budget(
        self, start: Builder, config: Builder, federation: Builder
    ) -> None:
        strategy = Probe(config(num_rounds=2))
        strategy.start(federation())
        line = releases(strategy.run.path)[-1]
        ledger = PrivacyLedger.open(strategy.run.ledger_file)
        from flower_privsyn.privacy import FullParticipation, GaussianMechanism

        with ledger, pytest.raises(BudgetExceededError):
            ledger.begin(
                round=3,
                query="nearest_neighbor_histogram",
                mechanism=GaussianMechanism(
                    noise_multiplier=line["noise_multiplier"], l2_sensitivity=8.0
                ),
                sampling=FullParticipation(population=12),
                planned_users=12,
            )
        assert len(releases(strategy.run.path)) == 2


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

    def test_users_over_the_cap_send_no_more_than_the_cap(
        self, federation: Builder, config: Builder
    ) -> None:
        strategy = Probe(config(num_rounds=1, noise_multiplier=0.0, max_samples=2))
        strategy.start(federation(make_users(5, samples=9)))
        assert strategy.released[0].values.sum() == 10
