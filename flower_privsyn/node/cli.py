"""`privsyn node`: what this node's owner allows, and what its users have spent."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from flower_privsyn.errors import ConfigError
from flower_privsyn.node.account import (
    Charge,
    NodeAccount,
    NodeLedger,
    datasets,
    ledger_folder,
    run_name,
)
from flower_privsyn.node.models import model_digest
from flower_privsyn.node.policy import (
    DEFAULTS,
    NODE_POLICY,
    NodePolicy,
    find_policy,
    policy_file,
    policy_text,
)


def policy(arguments: argparse.Namespace) -> int:
    """Show the policy in force, or write a file to start from."""
    named = None if arguments.path is None else Path(arguments.path).expanduser().absolute()
    if not arguments.init:
        found = _in_force(named)
        print(f"# {found.source if found.source != DEFAULTS else _nowhere()}\n")
        print(policy_text(found), end="")
        return 0
    path = named or (Path(os.environ[NODE_POLICY]) if os.environ.get(NODE_POLICY) else None)
    path = path or policy_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(policy_text())
    except FileExistsError:
        raise ConfigError(f"{path} exists and is left as it is.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.") from None
    print(path)
    return 0


def _nowhere() -> str:
    return f"the defaults: there is no {policy_file()}"


def _in_force(path: Path | None) -> NodePolicy:
    return find_policy({}) if path is None else NodePolicy.read(path)


def ledger(arguments: argparse.Namespace) -> int:
    """Show what was answered from each data set, and what is left."""
    limits = _in_force(None if arguments.policy is None else Path(arguments.policy).expanduser())
    names = datasets() if arguments.dataset is None else [arguments.dataset]
    found = []
    for name in names:
        kept = NodeLedger(name)
        if not kept.path.exists():
            raise ConfigError(
                f'There is no ledger of data set "{name}" in {ledger_folder()}; it holds '
                f"{', '.join(datasets()) or 'none'}."
            )
        found.append(describe(kept.account(), limits))
    if arguments.json:
        print(json.dumps({"policy": limits.source, "datasets": found}, indent=2))
        return 0
    if not found:
        print(f"No data set has an account in {ledger_folder()}: nothing was answered.")
    for entry in found:
        _show(entry, limits)
    return 0


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
        "delta": policy.delta,
        "relation": policy.relation.value,
        "epsilon": _finite(epsilon),
        "limit": _finite(policy.max_epsilon),
        "left": _finite(left),
        "runs": runs,
    }


def _show(entry: dict[str, Any], policy: NodePolicy) -> None:
    print(f"data set {entry['dataset']}")
    for run in entry["runs"]:
        multipliers = ", ".join(f"{value:.4g}" for value in run["noise_multipliers"])
        print(
            f"  {run_name(run['server'], run['run'])}\n"
            f"    {len(run['rounds'])} of {run['num_rounds']} rounds: {', '.join(run['queries'])}, "
            f"noise multiplier {multipliers}, sampling {', '.join(run['sampling'])}\n"
            f"    noise {', '.join(run['noise'])}; epsilon {_number(run['epsilon_alone'])} by "
            "itself"
        )
    print(
        f"  together epsilon {_number(entry['epsilon'])} of {_number(entry['limit'])} at delta "
        f"{entry['delta']:g} ({entry['relation']}), {_number(entry['left'])} left; limits from "
        f"{policy.source}\n"
        "  server trusted: a node cannot see the noise that a server adds, so the account is as "
        "good as its word\n"
    )


def digest(arguments: argparse.Namespace) -> int:
    """Print the SHA-256 of a model folder."""
    folder = Path(arguments.folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder.")
    print(model_digest(folder))
    return 0


def _trust(charge: Charge) -> str:
    kind = "central" if charge.noise == "central" else f"shares of {charge.shares_required}"
    who, *with_what = charge.trust.split(", ")
    return " ".join([f"{kind}, {who} trusted", *with_what])


def _sampling(charge: Charge) -> str:
    method = charge.sampling.method
    return method if method in ("full", "cyclic") else f"{method} {charge.sampling.rate:.4g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> str:
    return "infinity" if value is None else f"{value:.4g}"
