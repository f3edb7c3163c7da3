"""The owner's word on a request, and what an answer is charged as in the node's own account."""

from __future__ import annotations

from flwr.app import Context

from flower_privsyn.client_apps.node_users import digest
from flower_privsyn.errors import ConfigError, NotAllowedError
from flower_privsyn.messages import wire
from flower_privsyn.node import Charge, NodeGuard, in_simulation
from flower_privsyn.privacy import FixedSizeSampling, PoissonSampling


def guard_of(context: Context) -> NodeGuard:
    """The owner's word; a node whose policy cannot be used answers nothing."""
    try:
        return NodeGuard.of(context.node_config)
    except ConfigError as error:
        raise NotAllowedError(str(error)) from None


def charge_of(ask: wire.Ask, context: Context, guard: NodeGuard) -> Charge:
    """What an answer is charged as in the node's own account."""
    config = context.node_config
    # Outside a simulation, whether a recipe deals its users, only its author knows.
    parts = in_simulation() and "partition-id" in config and "num-partitions" in config
    return Charge(
        server=guard.server,
        run=context.run_id,
        node=context.node_id,
        partition=(int(config["partition-id"]), int(config["num-partitions"])) if parts else None,
        round_number=ask.round_number,
        num_rounds=ask.num_rounds,
        query=ask.query.name,
        clip_norm=ask.query.clip_norm,
        mechanism=ask.mechanism,
        relation=ask.relation,
        sampling=ask.sampling,
        correlation=ask.correlation,
        max_nodes_per_user=ask.data.max_nodes_per_user,
        coins=_coins(ask),
        classes=ask.data.classes,
        secure=ask.secure,
    )


def _coins(ask: wire.Ask) -> str:
    """Digest of the key that the users' coins are flipped with, where the account counts them."""
    if ask.correlation is None and isinstance(ask.sampling, PoissonSampling | FixedSizeSampling):
        return digest(ask.sampling_key)
    return ""
