"""Costs: the papers' tables, and that what a run counts is what its messages hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.common.serde import recorddict_to_proto

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.comparison.measures import spent
from flower_privsyn.data import Users
from flower_privsyn.dry_run.check import traffic_of_rounds
from flower_privsyn.environment import CPU_TIME
from flower_privsyn.messages import wire
from flower_privsyn.messages.wire import bytes_per_number
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.privacy.randomness import InsecureRandom
from flower_privsyn.queries import NearestNeighborHistogram
from flower_privsyn.report.summary import run_costs
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.federation import data_request
from flower_privsyn.run.method import RecordSource
from flower_privsyn.run.plan import plan_of
from flower_privsyn.strategies import POPri, POPriConfig, PrivateEvolution, PrivateEvolutionConfig
from flower_privsyn.testing import HashEmbedder, LoopbackGrid, hash_embedder
from tests.support.federation import dealt, make_users

Builder = Callable[..., Any]
VOTES = "query.nearest_neighbor_histogram"

#: Of all-MiniLM-L6-v2, in which both papers send candidates.
MINILM_DIMENSION = 384

ONE_ROUND: dict[str, Any] = {"num_rounds": 1, "noise_multiplier": 0.1}


# ---------------------------------------------------------------------- what a run counts


@pytest.fixture
def ran(federation: Builder, settings: Builder, evolution: Builder) -> tuple[LoopbackGrid, Any]:
    """Two rounds of six users on two nodes."""
    grid = federation(make_users(6), num_nodes=2)
    strategy = evolution(settings(num_rounds=2, noise_multiplier=0.1))
    strategy.start(grid)
    return grid, strategy


class TestCountedInARun:
    def test_what_is_counted_is_what_was_sent(self, ran: tuple[LoopbackGrid, Any]) -> None:
        """A node has some users, and what is counted is for one of them alone."""
        grid, strategy = ran
        down, up = 16 * 32, 16  # candidates, and a vote for each
        found = run_costs(strategy.run)
        assert found is not None
        assert (found["rounds"], found["floats_down"], found["floats_up"]) == (2, 2 * down, 2 * up)
        requests = [m for m in grid.requests if m.metadata.message_type == VOTES]
        replies = [m for m in grid.replies if "privsyn.answer" in m.content]
        assert len(requests) == len(replies) == 4
        (node,) = {reply.content["privsyn.answer"]["total"].numpy().shape[1] for reply in replies}
        width = bytes_per_number(
            wire.unpack_ask(requests[0], NearestNeighborHistogram).query.clip_norm
        )
        for number, counted in enumerate(strategy.run.metrics()):
            for messages, key, numbers, beside in (
                (requests, "bytes_down", 2 * down, 0),
                (replies, "bytes_up", width * up, up * (node - width)),
            ):
                for message in messages[2 * number : 2 * number + 2]:
                    size = wire.packed_bytes(message.content) - beside
                    assert counted[key] == pytest.approx(size, abs=8)
                    # Counted bytes are those of Flower's own serialisation, up to its tags.
                    serialised = recorddict_to_proto(message.content).ByteSize() - beside
                    assert counted[key] == pytest.approx(serialised, rel=0.35, abs=600)
                assert 0 <= counted[key] - numbers < 3000

    def test_seconds_are_those_of_the_whole_run_and_the_owner_s(
        self, ran: tuple[LoopbackGrid, Any], tmp_path: Path
    ) -> None:
        run = RunDirectory.open(ran[1].run.path)
        lines = run.owner.times()
        between = [line for line in lines if line["event"] == "round"]
        assert [line["round"] for line in between] == [line["round"] for line in run.metrics()]
        outside = {line["event"]: line for line in lines if line["event"] in ("begin", "finish")}
        found = spent(run, tmp_path / "none", users=6)["costs"]
        assert found["server_seconds"] == pytest.approx(
            sum(line["seconds_server"] for line in [*between, *outside.values()])
        )
        assert sum(line["seconds_feedback"] for line in between) > 0
        assert min(outside["begin"]["seconds_server"], outside["finish"]["seconds_server"]) > 0
        # A copy of the run directory alone knows everything but the times.
        alone = RunDirectory.open(shutil.copytree(run.path, tmp_path / "shared"))
        assert spent(alone, tmp_path / "none", users=6)["costs"]["server_seconds"] is None
        counted = run_costs(run)
        assert run_costs(alone) == counted
        assert counted is not None
        assert "seconds" not in json.dumps(counted)
        assert counted["expected"]["bytes_up"] == counted["bytes_up"]

    def test_what_is_counted_says_nothing_about_who_took_part(
        self, federation: Builder, settings: Builder, evolution: Builder, tmp_path: Path
    ) -> None:
        """Under Poisson sampling: the same counts for a crowd, for one user and for nobody.

        Each user has a node; the roll call asks all of them, whoever is drawn.
        """
        counts = []
        for name, rate, seed in (("many", 0.9, 1), ("few", 0.2, 2), ("none", 1e-6, 3)):
            strategy = evolution(
                settings(
                    num_rounds=2,
                    num_nodes=6,
                    sampling="poisson",
                    sampling_rate=rate,
                    noise_multiplier=0.5,
                    accountant="rdp",
                    run_dir=str(tmp_path / name),
                ),
                random=InsecureRandom(seed),
            )
            grid = federation(make_users(6), num_nodes=6)
            strategy.start(grid)
            asked = [m for m in grid.requests if m.metadata.message_type == VOTES]
            assert len(asked) == 2 * 6
            lines = strategy.run.metrics()
            assert len(lines) == 2
            assert all("num_nodes" not in line for line in lines)
            counts += [(line["floats_down"], line["floats_up"], line["bytes_up"]) for line in lines]
            costs = run_costs(strategy.run)
            assert costs is not None
            assert costs["expected"]["bytes_up"] == pytest.approx(rate * costs["bytes_up"])
        assert len(set(counts)) == 1


@pytest.mark.parametrize(
    ("strategy", "config", "down", "up"),
    [
        (
            PrivateEvolution,
            PrivateEvolutionConfig(**ONE_ROUND, num_candidates=2048, lookahead=1),
            786_432,
            2_048,
        ),
        (POPri, POPriConfig(**ONE_ROUND, answer_space="candidates"), 6_912_000, 18_000),
        # By default the root goes down and a number per dimension comes up.
        (POPri, POPriConfig(**ONE_ROUND), 384 * 385 // 2, 384),
    ],
)
def test_as_many_numbers_as_the_papers_print(
    strategy: Any, config: Any, down: int, up: int, tmp_path: Path
) -> None:
    """PrE-Text table 6 and POPri table 2, by what `check` counts."""
    method = strategy(config, embedder=HashEmbedder(MINILM_DIMENSION)).method
    plan = calibrated(plan_of(method, config, population=1000), epsilon=config.epsilon)
    source = RecordSource(fingerprint="", dimension=MINILM_DIMENSION)
    sources = {data_request(config, source): source}
    (planned,) = traffic_of_rounds(
        method, config, plan.for_population(1000), sources, scratch=tmp_path
    )
    assert (planned.floats_down, planned.floats_up) == (down, up)


# ---------------------------------------------------------------------- time on the nodes


class TestClientTime:
    @pytest.fixture
    def busy(self, tmp_path: Path) -> LoopbackGrid:
        """Nodes that compute for a while before they know their users."""

        def load(context: Context) -> Users:
            total = 0
            for number in range(400_000):
                total += number
            return dealt(make_users(4))(context)

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache")
        return LoopbackGrid(app, num_nodes=2)

    def test_counted_on_the_node_and_never_sent(
        self,
        busy: LoopbackGrid,
        settings: Builder,
        evolution: Builder,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        file = tmp_path / "cpu.jsonl"
        monkeypatch.setenv(CPU_TIME, str(file))
        strategy = evolution(settings(num_rounds=2))
        strategy.start(busy)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(line["message"], line["node"]) for line in lines] == [
            ("query.prepare", 0),
            ("query.prepare", 1),
            *[(VOTES, 0), (VOTES, 1)] * 2,
        ]
        # Who was asked is secret where users flip coins.
        assert file.stat().st_mode & 0o077 == 0
        assert all(line["cpu_seconds"] > 0 for line in lines)
        found = spent(strategy.run, file, users=4)["costs"]
        answered = sum(line["cpu_seconds"] for line in lines[2:])
        assert found["client_cpu_seconds"] == pytest.approx(answered / 4)
        for reply in busy.replies:
            assert not wire.unexpected_records(reply)
        sent = b"".join(_serialised(reply) for reply in busy.replies)
        assert b"cpu" not in sent
        assert "cpu" not in (strategy.run.path / "metrics.jsonl").read_text()


def _serialised(message: Message) -> bytes:
    return bytes(recorddict_to_proto(message.content).SerializeToString())
