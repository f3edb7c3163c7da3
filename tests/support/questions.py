"""A question of a server, as nodes get it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict

from flower_privsyn.messages import wire
from flower_privsyn.privacy import (
    FullParticipation,
    GaussianMechanism,
    PoissonSampling,
    ReleaseSpec,
)
from flower_privsyn.queries import NearestNeighborHistogram

DATA = wire.DataRequest(
    embedding_model="all-MiniLM-L6-v2",
    embedding_precision="float32",
    max_tokens=64,
    max_samples=8,
    min_date="",
    held_out_fraction=0.1,
    seed=3,
)


def ask(**changes: Any) -> wire.Ask:
    """A question; fields of what it releases may be given beside its own."""
    values: dict[str, Any] = {
        "query": NearestNeighborHistogram(max_samples=5, clip="l2"),
        "broadcast": {"candidates": np.eye(3, dtype=np.float32)},
        "data": DATA,
        "sampling_key": b"k" * 32,
        "num_rounds": 6,
        **changes,
    }
    released: dict[str, Any] = {
        "round": values.pop("round_number", 4),
        "query": values["query"].name,
        "mechanism": GaussianMechanism(noise_multiplier=2.0, l2_sensitivity=5.0),
        "sampling": PoissonSampling(rate=0.25, population=40),
        "max_nodes_per_user": max(1, values["data"].max_nodes_per_user),
    }
    for name in ("mechanism", "sampling", "relation", "correlation"):
        if name in values:
            released[name] = values.pop(name)
    return wire.Ask(release=ReleaseSpec(**released), **values)


def plain_ask(**changes: Any) -> wire.Ask:
    """A question to everybody, of a run of one round, under noise of one clip norm."""
    norm = changes["query"].clip_norm
    values: dict[str, Any] = {
        "round_number": 1,
        "sampling": FullParticipation(),
        "sampling_key": bytes(32),
        "mechanism": GaussianMechanism(noise_multiplier=1.0, l2_sensitivity=norm),
        "num_rounds": 1,
        **{key: value for key, value in changes.items() if value is not None},
    }
    return ask(**values)


def asked_release(request: Message) -> dict[str, Any]:
    """What a request says of its release; nothing where it asks for none."""
    held = request.content.config_records["privsyn.request"].get("release", "{}")
    release: dict[str, Any] = json.loads(str(held))
    return release


def asked_round(request: Message) -> Any:
    """The round of a request; None where it asks for no release."""
    return asked_release(request).get("round")


def with_release(content: RecordDict, **changes: Any) -> RecordDict:
    """A request that says something else of its release."""
    record = content.config_records["privsyn.request"]
    content.config_records["privsyn.request"]["release"] = json.dumps(
        {**json.loads(str(record["release"])), **changes}
    )
    return content
