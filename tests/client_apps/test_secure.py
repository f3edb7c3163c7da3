"""Nodes with owners and a server that does as it likes, through the real ClientApp."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from flower_privsyn.cli import main
from flower_privsyn.client_apps import handlers
from flower_privsyn.client_apps.account import NodeLedger, describe
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.client_apps.secure import (
    RoundStore,
    _sweep,
    check_state_folder,
    make_node_key,
    read_node_key,
)
from flower_privsyn.errors import FederationError, NotAllowedError, ProtocolError
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.privacy import GaussianMechanism
from flower_privsyn.secure_aggregation.keys import whole
from flower_privsyn.secure_aggregation.node import Advertised, advertise
from flower_privsyn.secure_aggregation.roster import Session
from flower_privsyn.testing import LoopbackGrid
from tests.support.federation import embedding_nodes, make_users
from tests.support.probe import Probe
from tests.support.questions import with_release
from tests.support.secure import node_key

pytestmark = pytest.mark.usefixtures("owner", "node_state")

NODES = 4


@pytest.fixture
def owners(owner: Path) -> Callable[..., LoopbackGrid]:
    """Four nodes of four owners who know each other's keys; `policy` is the first one's."""

    def build(policy: str = "", *, keys: int = NODES, **more: Any) -> LoopbackGrid:
        configs, public = [], []
        for index in range(NODES):
            path = owner / f"key-{index}"
            key = read_node_key(path) if path.exists() else make_node_key(path)
            public.append(key.public.hex())
        for index in range(NODES):
            file = owner / f"policy-{index}.toml"
            listed = json.dumps(public[:keys] if index == 0 else public)
            own = policy if index == 0 else ""
            file.write_text(f"node-keys = {listed}\n{own}\nmax-epsilon = 1e6\n")
            configs.append(
                {"policy": str(file), "node-key": str(owner / f"key-{index}"),
                 "dataset": f"people-{index}", "server": "north", "partition-id": index}
            )  # fmt: skip
        more = {"run_id": 2**40 + 1, "node_configs": configs, "is_simulation": False, **more}
        return embedding_nodes(make_users(12), owner, num_nodes=NODES, **more)

    return build


@pytest.fixture
def probe(config: Callable[..., Any], tmp_path: Path) -> Callable[..., Probe]:
    def build(**changes: Any) -> Probe:
        values = {
            "num_nodes": NODES, "secure_aggregation": True, "noise_multiplier": 0.01,
            "max_samples": 1, "num_rounds": 1, **changes,
        }  # fmt: skip
        return Probe(config(**values))

    return build


def test_owners_who_know_each_other_answer_and_charge(
    owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe], node_state: Path
) -> None:
    strategy, grid = probe(num_rounds=2, noise_multiplier=1.0), owners()
    strategy.start(grid)
    assert [one.num_users for one in strategy.released] == [12, 12]
    account = NodeLedger("people-2").account()
    assert [charge.spec.round for charge in account.charges] == [1, 2]
    assert all(charge.secure is not None for charge in account.charges)
    (run,) = describe(account, NodePolicy())["runs"]
    assert run["noise"] == ["of 2 honest nodes, 1 may collude"]
    # The node's account and the server's ledger have one epsilon.
    assert account.epsilon(NodePolicy()) == pytest.approx(
        strategy.run.metrics()[-1]["epsilon_release"], rel=1e-9
    )
    for path in node_state.glob("*.json"):
        assert json.loads(path.read_text()) == {"last": 2}


@pytest.mark.parametrize(
    ("policy", "keys", "says"),
    [
        ("min-roster = 5", 4, "The roster of the round has 4 nodes; the owner allows at least 5"),
        ("min-honest-nodes = 4", 4, "so 3 honest ones; the owner allows at least 4"),
        ("min-colluding = 2", 4, "assumes that 1 nodes collude .* allows at least 2"),
        ("", 3, "node [0-9]+ shows the key [0-9a-f]{64}, which this node's owner does not"),
        ("", 0, "listed are none"),
        ("min-noise-multiplier = 0.5", 4, "noise multiplier 0.01; the owner allows at least 0.5"),
    ],
)
def test_what_an_owner_does_not_allow_is_refused_before_an_answer(
    owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
    caplog: pytest.LogCaptureFixture, policy: str, keys: int, says: str,
) -> None:  # fmt: skip
    import re

    grid = owners(policy, keys=keys)
    with pytest.raises(FederationError), caplog.at_level(logging.ERROR):
        probe(least_nodes=4, colluding_nodes=1, num_rounds=2).start(grid)
    assert re.search(says, caplog.text)
    assert not NodeLedger("people-0").path.exists()


def test_an_owner_may_require_secure_aggregation(
    owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with pytest.raises(FederationError), caplog.at_level(logging.ERROR):
        probe(secure_aggregation=False).start(owners("require-secure-aggregation = true"))
    assert "in the clear; the owner allows secure aggregation alone" in caplog.text
    # Also where the question comes without having been announced.
    grid = owners("require-secure-aggregation = true")
    probe(run_dir=str(Path(probe().config.run_dir) / "secure")).start(grid)
    (asked,) = [
        m for m in grid.requests
        if m.metadata.message_type == secure_wire.INPUT and m.metadata.dst_node_id == 1
    ]  # fmt: skip
    request = asked.content["privsyn.request"]
    del request["secure"]
    clear = Message(
        RecordDict({k: v for k, v in asked.content.items() if k != wire.SECURE}), 1,
        "query.nearest_neighbor_histogram",
    )  # fmt: skip
    (reply,) = grid.send_and_receive([clear])
    assert reply.error.code == wire.ClientErrorCode.NOT_ALLOWED
    # And a question of secure aggregation is not answered in the clear.
    request["secure"] = json.dumps({"least_nodes": 3, "colluding": 1})
    (reply,) = grid.send_and_receive([clear])
    assert reply.error.code == wire.ClientErrorCode.BAD_REQUEST


@pytest.mark.parametrize("edited", ["min-honest-nodes = 3", "a key"])
def test_a_roster_that_the_owner_no_longer_allows_gets_no_answer(
    owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe], owner: Path, edited: str
) -> None:
    """Between two steps an owner hears of a node that colludes."""
    policy = owner / "policy-0.toml"

    def at_shares(request: Message, reply: Message) -> list[Message]:
        kind, node = request.metadata.message_type, reply.metadata.src_node_id
        if (kind, node) == (secure_wire.SHARES, 1):
            text, gone = policy.read_text(), read_node_key(owner / "key-3").public.hex()
            policy.write_text(
                text.replace(f', "{gone}"', "") if edited == "a key" else f"{edited}\n{text}"
            )
        return [reply]

    strategy = probe(least_nodes=3, colluding_nodes=1)
    strategy.start(owners(tamper=at_shares))
    assert [one.num_users for one in strategy.released] == [9]  # of the other three nodes
    assert not NodeLedger("people-0").path.exists()


class TestMaliciousServers:
    """What a server changes on the way to one node, and what that node says."""

    @pytest.fixture
    def refused(
        self, owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    ) -> Callable[..., str]:  # fmt: skip
        def run(step: str, change: Callable[[Any], Any]) -> str:
            grid = owners(run_id=2**40 + 77)
            push = LoopbackGrid.push_messages

            def tampering(self: LoopbackGrid, messages: Any) -> Any:
                sent = []
                for message in messages:
                    if (message.metadata.message_type, message.metadata.dst_node_id) == (step, 1):
                        message = Message(change(message.content), 1, step)
                    sent.append(message)
                return push(self, sent)

            monkeypatch.setattr(LoopbackGrid, "push_messages", tampering)
            strategy = probe(least_nodes=3, colluding_nodes=1)
            with caplog.at_level(logging.ERROR):
                strategy.start(grid)  # the others finish without the one that refuses
            return caplog.text

        return run

    def secured(self, content: RecordDict, **changes: Any) -> RecordDict:
        made = RecordDict(dict(content))
        record = made["privsyn.secure"]
        made["privsyn.secure"] = type(record)({**record, **changes})
        return made

    def asked(self, content: RecordDict, **changes: Any) -> RecordDict:
        made = RecordDict(dict(content))
        record = made["privsyn.request"]
        changed = {key.replace("_", "-"): value for key, value in changes.items()}
        made["privsyn.request"] = type(record)({**record, **changed})
        return made

    def test_a_threshold_below_the_policys(self, refused: Callable[..., str]) -> None:
        said = refused(secure_wire.SHARES, lambda c: self.secured(c, terms=whole(3, 0)))
        assert "assumes that 0 nodes collude with the server; the owner allows at least 1" in said

    def test_noise_multiplier_0(self, refused: Callable[..., str]) -> None:
        none = GaussianMechanism(noise_multiplier=0.0, l2_sensitivity=1.0)
        said = refused(
            secure_wire.INPUT,
            lambda c: with_release(self.asked(c), **none.to_dict()),
        )
        assert "noise multiplier 0 leaves each node 0 steps of the grid" in said

    def test_a_roster_of_numbers(self, refused: Callable[..., str]) -> None:
        """A number for a card would be as many zeros."""
        said = refused(secure_wire.SHARES, lambda c: self.secured(c, cards=[2**62] * NODES))
        assert "cards has another form than agreed" in said

    def test_other_terms_than_the_rosters(self, refused: Callable[..., str]) -> None:
        said = refused(
            secure_wire.INPUT,
            lambda c: self.asked(c, secure=json.dumps({"least_nodes": 4, "colluding": 1})),
        )
        assert "the question is for other terms than the roster" in said

    def three(self, content: RecordDict) -> RecordDict:
        """The message to node 1 without the last of those who answered."""
        record = content["privsyn.secure"]
        return self.secured(
            content,
            survivors=bytes(record["survivors"])[: 3 * 8],
            answered=bytes(record["answered"])[: 2 * 72],
        )

    def test_both_shares_of_one_node(
        self, owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        """Node 4 is said to have answered, and then not to: who has signed the one says no more."""
        codes = []

        def both(request: Message, reply: Message) -> list[Message]:
            step, node = request.metadata.message_type, request.metadata.dst_node_id
            if (step, node) == (secure_wire.AGREE, 1) and not codes:
                codes.append(0)
                other = Message(self.three(request.content), 1, step)
                (second,) = grid.send_and_receive([other])
                codes.append(second.error.code)
            return [reply]

        grid = owners(tamper=both)
        with caplog.at_level(logging.ERROR):
            probe(least_nodes=3, colluding_nodes=1).start(grid)
        assert codes == [0, wire.ClientErrorCode.PROTOCOL]
        assert "has come to another step of the round (Agreed): each step is taken once" in (
            caplog.text
        )

    def test_a_question_that_failed_is_not_put_again(
        self, owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        inner, codes = handlers.sum_of, []

        def fails_once(*asked: Any) -> Any:
            if not codes:
                raise MemoryError
            return inner(*asked)

        def again(request: Message, reply: Message) -> list[Message]:
            if reply.has_error() and not codes:
                codes.append(reply.error.code)
                metadata = request.metadata
                other = Message(request.content, metadata.dst_node_id, metadata.message_type)
                (second,) = grid.send_and_receive([other])
                codes.append(second.error.code)
            return [reply]

        monkeypatch.setattr(handlers, "sum_of", fails_once)
        grid = owners(tamper=again)
        with caplog.at_level(logging.ERROR):
            probe(least_nodes=3, colluding_nodes=1).start(grid)
        assert codes == [wire.ClientErrorCode.INTERNAL, wire.ClientErrorCode.PROTOCOL]
        assert "this node keeps nothing of round 1" in caplog.text

    def test_a_replayed_round(
        self, owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        grid = owners()
        probe().start(grid)
        charged = NodeLedger("people-0").path.read_bytes()
        asked = [m for m in grid.requests if m.metadata.dst_node_id == 1]
        replayed = [m for m in asked if m.metadata.message_type in secure_wire.STEPS]
        with caplog.at_level(logging.ERROR):
            for message in replayed:
                step = message.metadata.message_type
                (reply,) = grid.send_and_receive([Message(message.content, 1, step)])
                assert reply.error.code == wire.ClientErrorCode.PROTOCOL
        assert caplog.text.count("round 1 of run") == 5
        assert caplog.text.count("was begun before: this node has come to round 1") == 1
        assert caplog.text.count("this node keeps nothing of round 1") == 4
        assert NodeLedger("people-0").path.read_bytes() == charged


class TestStore:
    def test_a_round_is_begun_once_and_none_before_it(self, node_state: Path) -> None:
        store = RoundStore(5, 1)
        for number in (1, 3):
            kept, _ = advertise(Session(run=5, round_number=number), 1, node_key(1))
            store.begin(kept)
        for number in (1, 2, 3):
            kept, _ = advertise(Session(run=5, round_number=number), 1, node_key(1))
            with pytest.raises(ProtocolError, match=f"round {number} of run 5 was begun before"):
                store.begin(kept)
        assert store.path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ProtocolError, match="in another round"):
            store.state(Session(run=5, round_number=2), Advertised)
        assert "seal_secret" in store.path.read_text()
        store.keep(None)
        assert json.loads(store.path.read_text()) == {"last": 3}
        with pytest.raises(ProtocolError, match="keeps nothing of round 3"):
            store.state(Session(run=5, round_number=3), Advertised)

    def test_secrets_of_a_server_that_never_came_back_are_forgotten(self, node_state: Path) -> None:
        import os

        old, recent, new = RoundStore(5, 1), RoundStore(6, 1), RoundStore(7, 1)
        killed = old.path.with_name(f".{old.path.name}.123.456")
        for store, run in ((old, 5), (recent, 6)):
            kept, _ = advertise(Session(run=run, round_number=1), 1, node_key(1))
            store.begin(kept)
        killed.write_text("secrets")
        for path in (old.path, killed):
            os.utime(path, (1e9, 1e9))
        kept, _ = advertise(Session(run=7, round_number=1), 1, node_key(1))
        _sweep.cache_clear()  # as in another process, or in an hour
        with new.locked():
            new.begin(kept)
        assert {path.name for path in node_state.glob("*.json")} == {"6-1.json", "7-1.json"}

    def test_a_second_process_waits_until_a_step_is_taken(self, node_state: Path) -> None:
        import fcntl

        with RoundStore(5, 1).locked():
            (lock,) = node_state.glob("lock-*")
            with lock.open("wb") as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_others_must_not_write_where_secrets_are(
        self, node_state: Path, owners: Callable[..., LoopbackGrid], probe: Callable[..., Probe],
        caplog: pytest.LogCaptureFixture,
    ) -> None:  # fmt: skip
        check_state_folder()
        assert node_state.stat().st_mode & 0o777 == 0o700
        node_state.chmod(0o770)
        with pytest.raises(FederationError), caplog.at_level(logging.ERROR):
            probe().start(owners())
        assert "writable by nobody else" in caplog.text
        assert "mode 0770." in caplog.text
        assert "(PRIVSYN_NODE_STATE names another)" in caplog.text

    def test_a_key_is_for_its_owners_eyes(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "own" / "node-key"
        assert main(["node", "key", str(path)]) == 2
        assert "`privsyn node key --init` makes one" in capsys.readouterr().err
        assert main(["node", "key", str(path), "--init"]) == 0
        public = capsys.readouterr().out.strip()
        assert main(["node", "key", str(path)]) == 0
        assert capsys.readouterr().out.strip() == public == read_node_key(path).public.hex()
        assert path.stat().st_mode & 0o777 == 0o600
        assert main(["node", "key", str(path), "--init"]) == 2
        assert "exists and is left as it is" in capsys.readouterr().err
        path.chmod(0o644)
        with pytest.raises(NotAllowedError, match="has mode 0644"):
            read_node_key(path)
        path.chmod(0o600)
        path.write_text("no key\n")
        with pytest.raises(NotAllowedError, match="not 64 hexadecimal digits"):
            read_node_key(path)
