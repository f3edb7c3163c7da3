"""What docs/deployment.md says of 10^8 devices, where it can be simulated.

    python -m research.scale

How often coins ask a device, and what it then writes down; cohorts of a secure sum that lose nodes;
what a SuperLink keeps of its nodes.
"""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
from flwr.proto.runtime_pb2 import GetNodesResponse
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from flower_privsyn.client_apps.account import Charge, NodeLedger
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.privacy import FullParticipation, GaussianMechanism, ReleaseSpec
from flower_privsyn.secure_aggregation.terms import Terms

RANDOM = np.random.default_rng(0)


def asked(*, devices: int = 10**8, rounds: int = 1_000, rate: float = 1e-3) -> str:
    """How often devices are asked, each round by coins of one rate."""
    times = np.zeros(64, dtype=np.int64)
    for begin in range(0, devices, 10**7):
        drawn = RANDOM.binomial(rounds, rate, min(10**7, devices - begin))
        times += np.bincount(drawn, minlength=64)
    most = int(times.nonzero()[0][-1])
    never, often = times[0] / devices, times[5:].sum() / devices
    return f"asked: never {never:.1%}, five times or more {often:.2%}, at most {most} times"


def cohorts(lost: float, *, number: int = 100, nodes: int = 1_000, trials: int = 10_000) -> str:
    """Cohorts that keep enough nodes, and the noise of the sum of their sums over one sigma."""
    terms = Terms.of(nodes)
    left = RANDOM.binomial(nodes, 1.0 - lost, (trials, number))
    kept = left * (left >= terms.least_nodes)
    noise = np.sqrt(kept.sum(axis=1)).mean() * terms.noise_share
    finished, answers = (kept > 0).mean() * number, kept.sum(axis=1).mean()
    return (
        f"{lost:.0%} lost: {finished:.1f} of {number} sums, {answers:,.0f} nodes, {noise:.1f} sigma"
    )


def ledger(folder: Path, *, answers: int = 11, multiplier: float = 5.495) -> str:
    """What the account of a device holds that was asked so often."""
    account, policy = NodeLedger("device", folder=folder), NodePolicy(delta=1e-9)
    for number in range(1, answers + 1):
        spec = ReleaseSpec(
            round=number,
            query="token_counts",
            mechanism=GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=1.0),
            sampling=FullParticipation(population=10**5),
        )
        terms = Terms.of(1_000)
        charge = Charge(
            server="", run=number, node=1, spec=spec, num_rounds=1, clip_norm=1.0, secure=terms
        )
        account.charge(charge, policy)
    size, epsilon = account.path.stat().st_size / answers, account.account().epsilon(policy)
    return f"ledger: {size:.0f} bytes an answer; {answers} answers are epsilon {epsilon:.2f}"


def superlink(folder: Path | None, nodes: int) -> str:
    """What a SuperLink keeps of nodes that are online, and what hearing and listing them takes.

    Args:
        folder: of its database; None for none.
        nodes: how many.
    """
    before = psutil.Process().memory_info().rss
    database = str(folder / "state.db") if folder else FLWR_IN_MEMORY_DB_NAME
    state = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory()).state()
    names = [
        state.create_node("owner", "owner", secrets.token_bytes(120), 3e3) for _ in range(nodes)
    ]
    begun = time.process_time()
    for node in names:
        state.acknowledge_node_heartbeat(node, 3e3)
    heard = time.process_time() - begun
    kept = psutil.Process().memory_info().rss - before
    if folder:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        kept = Path(database).stat().st_size
    begun = time.process_time()
    sent = GetNodesResponse(nodes=state.get_node_info(statuses=["online"])).ByteSize()
    listed = time.process_time() - begun
    return (
        f"SuperLink, {'SQLite' if folder else 'memory'}: {kept / nodes:,.0f} bytes a node; "
        f"a heartbeat {1e6 * heard / nodes:.0f} us; in the list of all nodes "
        f"{sent / nodes:.0f} bytes and {1e6 * listed / nodes:.0f} us"
    )


def main() -> None:
    """Print the figures."""
    print(asked())
    with tempfile.TemporaryDirectory() as folder:
        print(ledger(Path(folder)))
    print(*map(cohorts, (0.05, 0.1, 0.15)), sep="\n")
    print(superlink(None, 100_000))
    with tempfile.TemporaryDirectory() as folder:
        print(superlink(Path(folder), 3_000))


if __name__ == "__main__":
    main()
