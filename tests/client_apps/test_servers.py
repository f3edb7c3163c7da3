"""Two servers, one node: through the real ClientApp and the real strategies."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flower_privsyn.client_apps import handlers
from flower_privsyn.client_apps.account import NodeLedger
from flower_privsyn.client_apps.handlers import create_client_app
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.errors import FederationError
from flower_privsyn.messages import wire
from flower_privsyn.testing import LoopbackGrid, hash_embedder
from tests.support.federation import embedding_nodes, make_users

pytestmark = pytest.mark.usefixtures("owner")

CODE = wire.ClientErrorCode.NOT_ALLOWED


@pytest.fixture
def grid_of(owner: Path) -> Callable[..., LoopbackGrid]:
    """What a server sees: one node with twelve users, whose owner allows an epsilon."""

    def build(server: str, run: int, max_epsilon: float = 2.0, **more: Any) -> LoopbackGrid:
        policy = owner / "policy.toml"
        policy.write_text(f"max-epsilon = {max_epsilon}\n")
        node = {"server": server, "dataset": "people", "policy": str(policy)}
        app = create_client_app(
            lambda context: make_users(12),
            embedder=hash_embedder,
            cache_directory=owner / "cache",
        )
        return LoopbackGrid(app, node_configs=[node], is_simulation=False, run_id=run, **more)

    return build


@pytest.fixture
def run_of(
    evolution: Callable[..., Any], settings: Callable[..., Any], owner: Path
) -> Callable[..., Any]:
    """A server's run of two rounds on one node."""

    def build(name: str, **changes: Any) -> Any:
        values = {"num_nodes": 1, "num_rounds": 2, "delta": 1e-6, "run_dir": str(owner / name)}
        if "noise_multiplier" not in changes:
            values["epsilon"] = 1.5
        return evolution(settings(**{**values, **changes}))

    return build


def test_the_second_of_two_runs_is_refused_at_the_owners_limit_with_both_named(
    grid_of: Callable[..., LoopbackGrid], run_of: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    first = run_of("north")
    first.start(grid_of("north", 1111))
    account = NodeLedger("people").account()
    # The node computes from the multiplier what the server's ledger says, at the same delta.
    assert account.epsilon(NodePolicy()) == pytest.approx(
        first.run.metrics()[-1]["epsilon_release"], rel=1e-9
    )
    second, grid = run_of("south"), grid_of("south", 2222)
    with pytest.raises(FederationError, match=CODE.text):
        second.start(grid)
    assert [message.metadata.message_type for message in grid.requests] == [wire.PREPARE]
    assert grid.replies[0].error.reason == CODE.text
    assert wire.unexpected_records(grid.replies[0]) == []
    (sentence,) = {r.getMessage() for r in caplog.records if "would bring" in r.getMessage()}
    for part in ('plan of run 2222 of server "south", num-rounds = 2', 'run 1111 of server "north"',
                 "(2 of 2 rounds)", "owner allows 2", '"people"'):  # fmt: skip
        assert part in sentence
    assert not second.run.ledger_file.exists()


def test_two_runs_at_once_cannot_pass_the_limit_together(
    grid_of: Callable[..., LoopbackGrid], run_of: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Both fit when they begin; the second finds what the first has spent since."""
    second, grid = run_of("south"), grid_of("south", 2222)
    begun = second.method.init

    def meanwhile(scratch: Path) -> Any:
        run_of("north").start(grid_of("north", 1111))
        return begun(scratch)

    second.method.init = meanwhile
    with suppress(FederationError):  # a server may give up where nobody answers
        second.start(grid)
    codes = [reply.error.code for reply in grid.replies if reply.has_error()]
    assert codes
    assert set(codes) == {CODE}
    account = NodeLedger("people").account()
    assert account.epsilon(NodePolicy()) <= 2.0
    sentences = [r.getMessage() for r in caplog.records if "would bring" in r.getMessage()]
    assert 'of run 2222 of server "south"' in sentences[0]
    assert 'run 1111 of server "north"' in sentences[0]


def test_the_noise_of_a_fixed_size_cohort_is_learnt_with_the_first_question(
    grid_of: Callable[..., LoopbackGrid], run_of: Callable[..., Any]
) -> None:
    """It depends on the roster, so that the node cannot refuse before."""
    strategy = run_of("fixed", sampling="fixed-size", sample_size=6, noise_multiplier=0.5)
    grid = grid_of("north", 3333)
    with suppress(FederationError):  # a server may give up where nobody answers
        strategy.start(grid)
    refused = [reply.has_error() for reply in grid.replies]
    assert refused[0] is False
    assert all(refused[1:])
    assert len(refused) > 1
    assert not NodeLedger("people").path.exists()


def test_a_resumed_run_plans_what_is_left_of_it(
    grid_of: Callable[..., LoopbackGrid], run_of: Callable[..., Any]
) -> None:
    """Else a run that was interrupted near the limit could not be finished."""

    def stop(number: int, arrays: Any) -> None:
        if number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_of("north").start(grid_of("north", 1111, max_epsilon=1.5), evaluate_fn=stop)
    grid = grid_of("north", 2222, max_epsilon=1.5)
    run_of("north", resume=True).start(grid)
    plan = wire.unpack_prepare(grid.requests[0])[1]
    assert (sum(asked.count for asked in plan.to_come), plan.num_rounds) == (1, 2)
    assert [c.spec.round for c in NodeLedger("people").account().charges] == [1, 2]


def test_a_simulation_keeps_no_account(
    run_of: Callable[..., Any], owner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVSYN_NODE_POLICY", str(owner / "policy.toml"))
    run_of("free", num_nodes=2).start(embedding_nodes(make_users(12), owner))
    assert not (owner / "ledgers").exists()


def test_kill_9_between_charge_and_answer_never_counts_less(
    grid_of: Callable[..., LoopbackGrid], run_of: Callable[..., Any], owner: Path
) -> None:
    left = []

    def dying(*answered: Any, **to: Any) -> Message:
        if len(left) == 2:  # the roster and one answer
            os.kill(os.getpid(), signal.SIGKILL)
        left.append(1)
        return Message(*answered, **to)

    child = os.fork()
    if child == 0:
        try:
            handlers.Message = dying  # type: ignore[assignment,misc]
            run = run_of("run", num_rounds=4, noise_multiplier=4.0, accept_noise=True)
            run.start(grid_of("north", 1111, max_epsilon=10.0))
        finally:
            os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    ledger = [json.loads(line) for line in (owner / "run" / "ledger.jsonl").open()]
    assert sum(line["event"] == "release" for line in ledger) == 1
    account = NodeLedger("people").account()
    assert [charge.spec.round for charge in account.charges] == [1, 2]


@pytest.mark.parametrize("fault", ["no folder", "relative", "loose", "full"])
def test_a_node_that_cannot_keep_its_account_says_so_before_anything_is_spent(
    fault: str, grid_of: Callable[..., LoopbackGrid], run_of: Callable[..., Any], owner: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = owner / "kept"
    if fault == "no folder":
        folder = Path("/proc/nowhere")
    elif fault == "relative":  # to where the node was started, as the next time it may not be
        monkeypatch.chdir(owner)
        folder = Path("kept")
    elif fault == "loose":
        folder.mkdir()
        folder.chmod(0o777)
    else:

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("flower_privsyn.client_apps.account.try_file", full)
    monkeypatch.setenv("PRIVSYN_NODE_LEDGERS", str(folder))
    grid, run = grid_of("north", 1111), run_of("north")
    said = wire.ClientErrorCode.ACCOUNT.text
    with pytest.raises(FederationError, match=said):
        run.start(grid)
    assert [message.metadata.message_type for message in grid.requests] == [wire.PREPARE]
    assert not run.run.ledger_file.exists()
    assert f"{folder} " in caplog.text
    assert not (owner / "kept" / "people.jsonl").exists()
