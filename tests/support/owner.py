"""A node with an owner: ledgers and policy in a folder of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flower_privsyn.client_apps.account import Charge
from flower_privsyn.client_apps.guard import simulated
from flower_privsyn.privacy import FullParticipation, GaussianMechanism, ReleaseSpec


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No simulation; the owner's files lie in the returned folder."""
    monkeypatch.delenv("PRIVSYN_NODE_POLICY", raising=False)
    monkeypatch.setenv("PRIVSYN_NODE_LEDGERS", str(tmp_path / "ledgers"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with simulated(False):
        yield tmp_path


@pytest.fixture
def node_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What nodes keep between messages; no power is cut here, so nothing waits for the disk."""
    monkeypatch.setenv("PRIVSYN_NODE_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    return tmp_path / "state"


@pytest.fixture
def asked() -> Callable[..., Charge]:
    """One answer; keyword arguments replace its values."""

    def build(round_number: int = 1, multiplier: float = 2.0, **changes: Any) -> Charge:
        run, node = changes.get("run", 7), changes.get("node", 1)
        values: dict[str, Any] = {
            "server": "north",
            "run": run,
            "node": node,
            "num_rounds": 20,
            "clip_norm": 3.0,
            **changes,
        }
        spec = {
            "query": "nearest_neighbor_histogram",
            "mechanism": GaussianMechanism(noise_multiplier=multiplier, l2_sensitivity=3.0),
            "sampling": FullParticipation(population=40),
        }
        spec |= {
            one.name: values.pop(one.name) for one in fields(ReleaseSpec) if one.name in values
        }
        return Charge(spec=ReleaseSpec(round=round_number, **spec), **values)

    return build
