"""max-nodes-per-user: the noise grows with it, the ledger says so, and what has no bound stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.messages import wire
from flower_privsyn.privacy import PrivacyLedger
from tests.support.federation import silent_users
from tests.support.probe import Probe

Builder = Callable[..., Any]


def test_the_noise_is_k_times_that_of_one_node(
    federation: Builder, config: Builder, tmp_path: Path
) -> None:
    strategy = Probe(
        config(noise_multiplier=2.0, num_rounds=1, max_samples=8, max_nodes_per_user=3),
        candidates=40_000,
    )
    grid = federation(silent_users(4))
    strategy.start(grid)
    (release,) = strategy.released
    assert release.noise_std == 2.0 * 3 * 8
    assert release.values.std() == pytest.approx(48.0, rel=0.015)  # four standard errors
    (line,) = PrivacyLedger.read(tmp_path / "run" / "ledger.jsonl").releases
    assert (line["max_nodes_per_user"], line["l2_sensitivity"]) == (3, 24.0)
    assert {
        message.content.config_records["privsyn.request"]["max-nodes-per-user"]
        for message in grid.requests
    } == {3}
    assert not any(wire.unexpected_records(reply) for reply in grid.replies)
