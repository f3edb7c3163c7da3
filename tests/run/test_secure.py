"""Secure aggregation through the real ClientApp, the real strategies and the private path."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from flwr.app import Context, Error, Message

from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.data import Users
from flower_privsyn.errors import ConfigError, FederationError
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.messages.wire import packed_bytes
from flower_privsyn.privacy.mechanisms import STEPS
from flower_privsyn.secure_aggregation.codec import read
from flower_privsyn.secure_aggregation.keys import NodeKey
from flower_privsyn.secure_aggregation.roster import KeyCard
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.federation import make_users, silent_users
from tests.support.probe import Probe
from tests.support.questions import asked_round
from tests.support.run_files import lines, releases

pytestmark = pytest.mark.usefixtures("node_state")

Builder = Callable[..., Any]
NODES = 6


@pytest.fixture
def probe(config: Builder) -> Builder:
    def build(**changes: Any) -> Probe:
        candidates = changes.pop("candidates", 20)
        values = {
            "num_nodes": NODES, "secure_aggregation": True, "noise_multiplier": 1e-3,
            "max_samples": 1, "num_rounds": 2, **changes,
        }  # fmt: skip
        return Probe(config(**values), candidates=candidates)

    return build


@pytest.fixture
def node_keys(monkeypatch: pytest.MonkeyPatch) -> list[NodeKey]:
    """The keys of the nodes, in their order, the same in every round; a test may change them."""
    keys = [NodeKey.generate() for _ in range(NODES)]
    monkeypatch.setattr(
        "flower_privsyn.client_apps.secure._key", lambda context: keys[context.node_id - 1]
    )
    return keys


#: What a node's reply holds at each step, a masked vector beside it apart.
SENT = {
    secure_wire.KEYS: {"run", "card"},
    secure_wire.SHARES: {"commitment", "letters"},
    secure_wire.INPUT: {"signature"},
    secure_wire.AGREE: {"signature"},
    secure_wire.UNMASK: {"seeds", "mask_keys"},
}


def losing(step: str, *nodes: int, rounds: int = 99) -> Callable[[Message, Message], list[Message]]:
    """Loses what some nodes answer to a step, and to all later ones, in the first rounds."""
    order = list(secure_wire.STEPS)

    def lose(request: Message, reply: Message) -> list[Message]:
        kind = request.metadata.message_type
        late = kind in order and order.index(kind) >= order.index(step)
        if late and kind == secure_wire.INPUT:
            late = asked_round(request) <= rounds
        elif late:
            late = secure_wire.unpack(secure_wire.Asked, request).round <= rounds
        return [] if late and reply.metadata.src_node_id in nodes else [reply]

    return lose


def killed(act: Callable[[], object]) -> None:
    """Do something in a process of its own, which is killed in the middle of it."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


class TestSums:
    def test_it_is_the_central_sum_with_a_little_noise(
        self, federation: Builder, config: Builder, probe: Builder, tmp_path: Path, node_state: Path
    ) -> None:
        users = make_users(18)
        central = Probe(
            config(noise_multiplier=0.0, num_rounds=1, max_samples=1, num_nodes=NODES,
                   run_dir=str(tmp_path / "central"))
        )  # fmt: skip
        central.start(federation(users, num_nodes=NODES))
        secure = probe()
        grid = federation(users, num_nodes=NODES)
        secure.start(grid)
        for released in secure.released:
            assert np.array_equal(np.rint(released.values), central.released[0].values)
            assert released.noise_std == pytest.approx(1e-3 * (6 / 3) ** 0.5)
            assert released.num_users == 18
        kinds = [message.metadata.message_type for message in grid.requests]
        assert kinds == ["query.prepare"] * 6 + [
            kind for _ in range(2) for kind in secure_wire.STEPS for _ in range(6)
        ]
        # Nothing is left on the nodes' disks but how far they have come.
        for path in node_state.glob("*.json"):
            assert json.loads(path.read_text()) == {"last": 2}
            assert path.stat().st_mode & 0o777 == 0o600
        facts = {"noise": "nodes", "nodes": 6, "least_nodes": 5, "colluding_nodes": 2}
        assert [line["extra"] for line in releases(secure.run.path)] == [facts] * 2
        line = secure.run.metrics()[-1]
        assert line["answers"] == 6
        # The messages of the run to any node, and back, are as many bytes as it says of each round.
        for key, messages in (("bytes_down", grid.requests), ("bytes_up", grid.replies)):
            sent = sum(packed_bytes(message.content) for message in messages[NODES:])
            assert line[key] * NODES * 2 == sent

    def test_released_noise_has_the_stated_law(self, federation: Builder, probe: Builder) -> None:
        strategy = probe(num_rounds=1, candidates=50_000, noise_multiplier=2.0)
        strategy.start(federation(silent_users(6), num_nodes=NODES))
        (released,) = strategy.released
        assert released.noise_std == pytest.approx(2.0 * (6 / 3) ** 0.5)
        assert released.values.std() == pytest.approx(released.noise_std, rel=4 / 100_000**0.5)
        assert abs(released.values.mean()) < 4 * released.noise_std / 50_000**0.5

    def test_nothing_but_keys_seals_masks_and_shares_reaches_the_server(
        self, federation: Builder, probe: Builder
    ) -> None:
        """Every byte that the server got, searched for every node's own sum."""
        users = make_users(18)
        grid = federation(users, num_nodes=NODES)
        strategy = probe(num_rounds=1, candidates=4000, noise_multiplier=1e-3)
        strategy.start(grid)
        plain = _own_sums(federation, users, strategy)
        bodies = []
        for reply in grid.replies:
            assert wire.unexpected_records(reply) == []
            kind = _kind_of(grid, reply)
            if kind == wire.PREPARE:
                continue
            nobody_was_lost = {"mask_keys"}
            held = set(reply.content["privsyn.secure"])
            assert held == SENT[kind] - nobody_was_lost
            numbers = {"privsyn.masked"} if kind == secure_wire.INPUT else set()
            assert set(reply.content) == {"privsyn.secure"} | numbers
            for record in reply.content.values():
                assert "num_users" not in record
                for value in record.values():
                    found = value if isinstance(value, list) else [value]
                    bodies += [getattr(one, "data", one) for one in found]
        bodies = [bytes(body) for body in bodies]
        everything = b"\n".join(bodies)
        for total in plain.values():
            for width in (4, 5, 8):
                body = (total * STEPS).astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width]
                assert np.ascontiguousarray(body).tobytes()[:64] not in everything
        masked = [body for body in bodies if len(body) > 8 * 4000]
        assert len(masked) == NODES
        for body in masked:
            counts = np.bincount(np.frombuffer(body[-8 * 4000 :], np.uint8), minlength=256)
            assert ((counts - 125.0) ** 2 / 125.0).sum() < 400

    def test_coins_are_the_nodes_own_and_everybody_answers(
        self, federation: Builder, probe: Builder
    ) -> None:
        grid = federation(make_users(18), num_nodes=NODES)
        strategy = probe(sampling="poisson", sampling_rate=0.5, num_rounds=4, noise_multiplier=0.05)
        strategy.start(grid)
        asked = [m for m in grid.requests if m.metadata.message_type == secure_wire.INPUT]
        assert len(asked) == 4 * NODES
        assert {bytes(m.content["privsyn.request"]["sampling-key"]) for m in asked} == {bytes(32)}
        sizes = {int(np.rint(released.values.sum())) for released in strategy.released}
        assert len(sizes) > 1  # drawn anew in every round
        assert all(0 <= size <= 18 for size in sizes)
        assert [line["num_users"] for line in releases(strategy.run.path)] == [None] * 4
        assert {released.num_users for released in strategy.released} == {None}


class TestSecretDraws:
    """Where coins decide who takes part, who was late says something of how they fell."""

    COINS: ClassVar[dict[str, Any]] = {"sampling": "poisson", "sampling_rate": 0.5}

    def test_how_many_nodes_answered_is_in_no_file(
        self, federation: Builder, probe: Builder, tmp_path: Path
    ) -> None:
        found = []
        for number, late in enumerate(((), (3,))):
            strategy = probe(run_dir=str(tmp_path / f"run-{number}"), **self.COINS)
            users, tamper = make_users(18), losing(secure_wire.INPUT, *late)
            strategy.start(federation(users, num_nodes=NODES, tamper=tamper, run_id=number + 1))
            path = strategy.run.path
            states = sorted(path.glob("rounds/*/state.json"))
            found.append(
                (
                    [line["extra"] for line in releases(path)],
                    [json.loads(state.read_text()).get("noise_std") for state in states],
                    [released.noise_std for released in strategy.released],
                    [{**line, "ledger": None} for line in strategy.run.metrics()],
                )
            )
        assert len(found[0][0]) == len(found[0][2]) == 2
        assert found[0] == found[1]
        # Of all nodes, as far as anybody may know.
        assert found[0][2] == pytest.approx([1e-3 * (NODES / 3) ** 0.5] * 2)

    def test_no_file_says_why_there_is_no_sum(
        self, federation: Builder, probe: Builder, tmp_path: Path
    ) -> None:
        strategy = probe(run_dir=str(tmp_path / "run"), **self.COINS)
        tamper = losing(secure_wire.INPUT, 3, 5)
        with pytest.raises(FederationError, match="too few nodes answered for a sum"):
            strategy.start(federation(make_users(18), num_nodes=NODES, tamper=tamper))
        for file in strategy.run.path.rglob("*.json*"):
            assert "4 of 6" not in file.read_text(), file


def _kind_of(grid: Any, reply: Message) -> str:
    kinds = {m.metadata.message_id: m.metadata.message_type for m in grid.requests}
    return kinds[reply.metadata.reply_to_message_id]


def _own_sums(federation: Builder, users: Any, strategy: Probe) -> dict[int, np.ndarray]:
    """The raw sum of each node, asked in the clear."""
    grid = federation(users, num_nodes=NODES)
    found = {}
    settings = strategy.config.to_dict() | {"secure-aggregation": False}
    kept = Probe(type(strategy.config)(**{
        key.replace("-", "_"): value for key, value in settings.items()
        if key not in ("run-dir",)
    } | {"run_dir": str(strategy.run.path) + "-clear"}), candidates=4000)  # fmt: skip
    kept.start(grid)
    for reply in grid.replies:
        if "privsyn.answer" in reply.content:
            packed = reply.content["privsyn.answer"]["total"].numpy()
            from flower_privsyn.messages.wire import unpack_steps

            found[reply.metadata.src_node_id] = unpack_steps(packed) / STEPS
    assert len(found) == NODES
    return found


class TestLosses:
    @pytest.mark.parametrize("step", list(secure_wire.STEPS))
    def test_one_node_is_lost_at_any_step_and_comes_back(
        self, federation: Builder, probe: Builder, step: str
    ) -> None:
        """It has kept on its disk what the step left there, and the next round begins anew."""
        users = make_users(18)
        strategy = probe(least_nodes=4, colluding_nodes=1)
        strategy.start(federation(users, num_nodes=NODES, tamper=losing(step, 2, rounds=1)))
        released, whole = strategy.released
        assert whole.num_users == 18
        assert np.rint(whole.values).sum() == 18
        late = step in (secure_wire.AGREE, secure_wire.UNMASK)
        nodes = 6 if late else 5
        assert released.noise_std == pytest.approx(1e-3 * (nodes / 3) ** 0.5)
        assert released.num_users == 3 * nodes
        assert np.rint(released.values).sum() == 3 * nodes

    @pytest.mark.parametrize(
        ("step", "charged"),
        [
            (secure_wire.KEYS, False),
            (secure_wire.SHARES, False),
            (secure_wire.INPUT, True),
            (secure_wire.AGREE, True),
            (secure_wire.UNMASK, True),
        ],
    )
    def test_beyond_t_a_round_ends_and_costs_what_it_has_cost_the_nodes(
        self, federation: Builder, probe: Builder, step: str, charged: bool
    ) -> None:
        tamper = losing(step, 1, 2, 3)
        strategy = probe(num_rounds=3, least_nodes=5, colluding_nodes=1)
        with pytest.raises(FederationError, match="two rounds in a row were lost: .* are needed"):
            strategy.start(federation(make_users(18), num_nodes=NODES, tamper=tamper))
        assert strategy.released == []
        assert len(releases(strategy.run.path)) == (2 if charged else 0)
        events = [line["event"] for line in lines(strategy.run.ledger_file)]
        assert ("discarded" in events) is not charged
        assert events.count("started") == 2  # and nothing is left open
        outcome = "lost" if charged else "discarded"
        assert strategy.run.rounds_with_outcome(outcome) == [1, 2]

    def test_a_sum_of_enough_nodes_is_released_however_few_users_are_on_them(
        self, tmp_path: Path, probe: Builder
    ) -> None:
        """The server has seen it, and every node has charged it: discarding it would be a gift."""

        def load(context: Context) -> Users:
            return make_users(20 if context.node_config["partition-id"] == 1 else 1)

        app = create_client_app(load, embedder=hash_embedder, cache_directory=tmp_path / "cache")
        grid = LoopbackGrid(app, num_nodes=NODES, tamper=losing(secure_wire.INPUT, 2))
        strategy = probe(num_rounds=1, least_nodes=4, colluding_nodes=1)
        strategy.start(grid)
        assert [released.num_users for released in strategy.released] == [5]
        assert [line["num_users"] for line in releases(strategy.run.path)] == [5]

    def test_of_two_nodes_with_one_key_one_is_lost(
        self,
        federation: Builder,
        probe: Builder,
        node_keys: list[NodeKey],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """As of a copied disk: it used to end every round for all."""
        node_keys[2] = node_keys[1]
        strategy = probe()
        with caplog.at_level("WARNING", logger="flwr.privsyn"):
            strategy.start(federation(make_users(18), num_nodes=NODES))
        assert [released.num_users for released in strategy.released] == [15, 15]
        assert strategy.run.metrics()[-1]["sa_keys: rejected: breaks the protocol"] == 1
        assert "node 3 shows a key of another node" in caplog.text
        for file in strategy.run.path.rglob("*.json*"):  # which node: for the owner alone
            assert "another node" not in file.read_text()

    def test_a_copied_public_key_throws_nobody_out(
        self, federation: Builder, probe: Builder, node_keys: list[NodeKey]
    ) -> None:
        """Node 1 is heard of first, and shows what everybody knows of node 2."""

        def copy(request: Message, reply: Message) -> list[Message]:
            asked = request.metadata.message_type
            if (asked, reply.metadata.src_node_id) == (secure_wire.KEYS, 1):
                shown = secure_wire.unpack_reply(secure_wire.Shown, reply)
                copied = replace(shown.card, node_key=node_keys[1].public)
                reply.content = secure_wire.pack(replace(shown, card=copied))
            return [reply]

        strategy = probe(num_rounds=1)
        strategy.start(federation(make_users(18), num_nodes=NODES, tamper=copy))
        assert [released.num_users for released in strategy.released] == [15]

    @pytest.mark.usefixtures("node_keys")
    def test_no_secret_serves_in_two_rounds_or_two_runs(
        self, federation: Builder, probe: Builder, tmp_path: Path
    ) -> None:
        """Rounds that are lost and asked again, and another Flower run, whatever was out before."""
        kept: list[bytes] = []
        for run in (7, 8):
            strategy = probe(num_rounds=2, run_dir=str(tmp_path / f"run-{run}"))
            lost = losing(secure_wire.INPUT, 2, rounds=1)
            grid = federation(make_users(18), num_nodes=NODES, tamper=lost, run_id=run)
            strategy.start(grid)
            assert [one.num_users for one in strategy.released] == [15, 18]
            for reply in grid.replies:
                for key, value in reply.content.config_records.get("privsyn.secure", {}).items():
                    if key == "card":
                        card = read("a card", KeyCard, bytes(value))
                        kept += [card.seal_key, card.mask_key]
                    elif key == "commitment":
                        kept.append(bytes(value))
                    elif key in ("letters", "seeds", "mask_keys"):
                        length = 8 + (80 if key == "letters" else 32)  # behind a node's number
                        kept += [
                            bytes(value[start + 8 : start + length])
                            for start in range(0, len(value), length)
                        ]
                if "privsyn.masked" in reply.content:
                    kept.append(reply.content["privsyn.masked"]["masked"].numpy().tobytes())
        rounds, pairs = 4, NODES * (NODES - 1)
        masked, shares = rounds * NODES - 2, 2 * (pairs - 5 + pairs)
        assert len(kept) == rounds * (3 * NODES + pairs) + masked + shares
        assert len(set(kept)) == len(kept)

    @pytest.mark.parametrize("step", list(secure_wire.STEPS))
    def test_a_server_that_is_killed_in_a_round(
        self, federation: Builder, probe: Builder, node_state: Path, step: str
    ) -> None:
        """By SIGKILL, when half of the nodes have replied: charged, left out, and gone on with."""
        users = make_users(18)

        def die(request: Message, reply: Message) -> list[Message]:
            if (request.metadata.message_type, reply.metadata.src_node_id) == (step, 3):
                os.kill(os.getpid(), signal.SIGKILL)
            return [reply]

        grid = federation(users, num_nodes=NODES, tamper=die, run_id=7)
        killed(lambda: probe().start(grid))
        left = {path.name: path.read_bytes() for path in node_state.glob("7-*.json")}
        again = probe(resume=True)
        again.start(federation(users, num_nodes=NODES, run_id=8))
        assert [line["interrupted"] for line in releases(again.run.path)] == [True, False]
        assert [released.round_number for released in again.released] == [2]
        # Another run of Flower's asks the nodes for nothing of the round that was open.
        assert {path.name: path.read_bytes() for path in node_state.glob("7-*.json")} == left
        unmasked = [json.loads(kept).get("state") is None for kept in left.values()]
        assert sum(unmasked) == (3 if step == secure_wire.UNMASK else 0)

    @pytest.mark.parametrize("written", [False, True], ids=["before-it-is-kept", "after"])
    @pytest.mark.parametrize("step", list(secure_wire.STEPS))
    def test_a_node_that_is_killed_in_a_step(
        self, federation: Builder, probe: Builder, node_state: Path, step: str, written: bool
    ) -> None:
        """By SIGKILL, before or after its disk knows of the step: no two replies leave for one."""
        grid = federation(make_users(18), num_nodes=NODES)
        answer, codes = grid._client_app, []

        def dying(message: Message, context: Any) -> Message:
            if codes or (message.metadata.message_type, context.node_id) != (step, 2):
                return answer(message, context)  # type: ignore[no-any-return]

            def die(_: int, seen: list[int] = []) -> None:  # noqa: B006 - counts calls
                seen.append(1)
                if len(seen) == 1 + written:
                    os.kill(os.getpid(), signal.SIGKILL)

            def take() -> None:
                os.fsync = die  # type: ignore[assignment]
                answer(message, context)

            killed(take)
            # The server asks again, as it may not: who has come to the next step refuses.
            second = answer(message, context)
            codes.append(second.error.code if second.has_error() else 0)
            return Message(Error(8), reply_to=message)

        grid._client_app = dying
        strategy = probe(least_nodes=4, colluding_nodes=1)
        strategy.start(grid)
        assert codes == [int(wire.ClientErrorCode.PROTOCOL) if written else 0]
        late = step in (secure_wire.AGREE, secure_wire.UNMASK)
        assert [one.num_users for one in strategy.released] == [18 if late else 15, 18]
        # Neither what it was writing nor what it had kept is left after the next round.
        assert not [path for path in node_state.iterdir() if path.name.startswith(".")]
        for path in node_state.glob("*.json"):
            assert json.loads(path.read_text()) == {"last": 2}

    def test_no_step_is_taken_twice(self, federation: Builder, probe: Builder) -> None:
        """A server that asks every node everything twice: the second time each of them refuses."""
        again: dict[str, list[int]] = {}

        def repeat(request: Message, reply: Message) -> list[Message]:
            kind = request.metadata.message_type
            if kind in secure_wire.STEPS:
                node = request.metadata.dst_node_id
                second = grid._client_app(request, grid._contexts[node])
                again.setdefault(kind, []).append(second.error.code)
            return [reply]

        grid = federation(make_users(18), num_nodes=NODES, tamper=repeat)
        strategy = probe(num_rounds=1)
        strategy.start(grid)
        code = int(wire.ClientErrorCode.PROTOCOL)
        assert again == {kind: [code] * NODES for kind in secure_wire.STEPS}
        assert np.rint(strategy.released[0].values).sum() == 18


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"sampling": "fixed-size", "sample_size": 3}, 'needs sampling = "full" or "poisson"'),
            ({"min_users": 3}, "min-users = 0 or none, got 3"),
            ({"noise_multiplier": 0.0}, "no node answers with noise-multiplier = 0"),
            ({"least_nodes": 4}, "least-nodes must be between 5 and 6 for 6 nodes"),
            ({"secure_aggregation": False, "colluding_nodes": 1}, "colluding-nodes = 1 needs sec"),
        ],
    )
    def test_what_it_cannot_do_is_refused_with_the_key(
        self, probe: Builder, changes: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(ConfigError, match=says):
            probe(**changes)
