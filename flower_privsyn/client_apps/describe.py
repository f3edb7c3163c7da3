"""The account of a data set as JSON: what each run was answered, and what is left."""

from __future__ import annotations

import math
from typing import Any

from flower_privsyn.client_apps.account import NodeAccount
from flower_privsyn.client_apps.charge import Charge
from flower_privsyn.client_apps.policy import NodePolicy


def describe(account: NodeAccount, policy: NodePolicy) -> dict[str, Any]:
    """An account as JSON: what each run was answered, and the epsilon of all of them.

    Args:
        account: of one data set.
        policy: whose delta, relation and limit hold.

    Returns:
        `epsilon`, `limit` and `left` are None for infinity.
    """
    epsilon = account.epsilon(policy)
    runs = []
    for server, run, charges in account.runs():
        alone = NodeAccount(account.dataset, charges)
        runs.append(
            {
                "server": server,
                "run": run,
                "rounds": sorted({charge.round_number for charge in charges}),
                "num_rounds": max(charge.num_rounds for charge in charges),
                "queries": sorted({charge.query for charge in charges}),
                "classes": sorted({name for charge in charges for name in charge.classes}),
                "noise_multipliers": sorted(
                    {charge.mechanism.noise_multiplier for charge in charges}
                ),
                "sampling": sorted({_sampling(charge) for charge in charges}),
                "relation": sorted({charge.relation.value for charge in charges}),
                "noise": sorted({_trust(charge) for charge in charges}),
                "epsilon_alone": _finite(alone.epsilon(policy)),
            }
        )
    left = policy.max_epsilon
    if math.isfinite(left):
        left = max(0.0, left - epsilon)
    return {
        "dataset": account.dataset,
        "also": list(account.also),
        "delta": policy.delta,
        "relation": policy.relation.value,
        "epsilon": _finite(epsilon),
        "limit": _finite(policy.max_epsilon),
        "left": _finite(left),
        "runs": runs,
    }


def _trust(charge: Charge) -> str:
    if charge.secure is None:
        return "central, server trusted"
    return f"of {charge.secure.honest} honest nodes, {charge.secure.colluding} may collude"


def _sampling(charge: Charge) -> str:
    method = charge.sampling.method
    return method if method in ("full", "cyclic") else f"{method} {charge.sampling.rate:.4g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
