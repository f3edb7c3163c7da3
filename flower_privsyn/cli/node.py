"""`privsyn node`: what this node's owner allows, and what its users have spent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_privsyn.cli.options import Json, PlainCommand, option, plain_group
from flower_privsyn.cli.output import number, show_json
from flower_privsyn.environment import NODE_POLICY
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded, user_path, write_new

if TYPE_CHECKING:
    from flower_privsyn.client_apps.policy import NodePolicy

node = plain_group("For the owner of a node: its policy, key and account.")


@node.command(cls=PlainCommand)
def policy(
    path: Annotated[str | None, typer.Argument(metavar="PATH", hidden=True)] = None,
    init: Annotated[
        bool, typer.Option("--init", help="write a commented file with the defaults")
    ] = False,
) -> int:
    """Show the policy in force, or write a file to start from.

    It is the file PATH, else the file that PRIVSYN_NODE_POLICY names, else node-policy.toml in
    ~/.config/flower-privsyn, else the defaults.
    """
    from flower_privsyn.client_apps.guard import policy_file
    from flower_privsyn.client_apps.policy import DEFAULTS, policy_text

    named = None if path is None else user_path(path)
    if not init:
        found = _in_force(named)
        nowhere = f"the defaults: there is no {policy_file()}"
        print(f"# {nowhere if found.source == DEFAULTS else found.source}\n")
        print(policy_text(found), end="")
        return 0
    target = named or user_path(os.environ.get(NODE_POLICY) or policy_file())
    write_new(target, policy_text())
    print(target)
    return 0


def _in_force(path: Path | None) -> NodePolicy:
    from flower_privsyn.client_apps.guard import find_policy
    from flower_privsyn.client_apps.policy import NodePolicy

    return find_policy({}) if path is None else NodePolicy.read(path)


@node.command(cls=PlainCommand)
def ledger(
    dataset: Annotated[str | None, option("NAME", "one data set (default: all)")] = None,
    policy: Annotated[str | None, option("PATH", "a policy file (default: that in force)")] = None,
    as_json: Json = False,
) -> int:
    """Show what was answered from each data set, and what is left.

    By run and server, from the noise multipliers they stated, with the epsilon of all of them
    together at the owner's delta.
    """
    from flower_privsyn.client_apps.account import NodeLedger, datasets, describe, ledger_folder

    limits = _in_force(None if policy is None else expanded(policy))
    found = []
    for name in datasets() if dataset is None else [dataset]:
        kept = NodeLedger(name)
        if not kept.path.exists():
            raise ConfigError(
                f'There is no ledger of data set "{name}" in {ledger_folder()}; it holds '
                f"{', '.join(datasets()) or 'none'}."
            )
        found.append(describe(kept.account(), limits))
    if as_json:
        return show_json({"policy": limits.source, "datasets": found})
    if not found:
        print(f"No data set has an account in {ledger_folder()}: nothing was answered.")
    for entry in found:
        _show(entry, limits, named=policy is not None)
    return 0


def _show(entry: dict[str, Any], policy: NodePolicy, *, named: bool) -> None:
    from flower_privsyn.client_apps.account import run_name
    from flower_privsyn.data.users import few

    def epsilon(value: float | None) -> str:
        return number(value, none="infinity")

    print(f"data set {entry['dataset']}")
    for run in entry["runs"]:
        multipliers = ", ".join(f"{value:.4g}" for value in run["noise_multipliers"])
        print(
            f"  {run_name(run['server'], run['run'])}\n"
            f"    {len(run['rounds'])} of {run['num_rounds']} rounds: {', '.join(run['queries'])}, "
            f"noise multiplier {multipliers}, sampling {', '.join(run['sampling'])}\n"
            f"    noise {', '.join(run['noise'])}; epsilon {epsilon(run['epsilon_alone'])} by "
            "itself"
        )
        if run["classes"]:
            classes = few(run["classes"], most=8, letters=None)
            print(f"    asked about the classes {classes} of documents")
    print(
        f"  together epsilon {epsilon(entry['epsilon'])} of {epsilon(entry['limit'])} at delta "
        f"{entry['delta']:g} ({entry['relation']}), {epsilon(entry['left'])} left; limits from "
        f"{policy.source}" + ("" if named else " (of a policy in --node-config: --policy FILE)")
    )
    if any("server trusted" in noise for run in entry["runs"] for noise in run["noise"]):
        print(
            "  server trusted: a node cannot see the noise that a server adds, so the account is "
            "as good as its word"
        )
    print()


@node.command(cls=PlainCommand)
def key(
    path: Annotated[str | None, typer.Argument(metavar="PATH", hidden=True)] = None,
    init: Annotated[bool, typer.Option("--init", help="make a key where there is none")] = False,
) -> int:
    """Print this node's public key, or make one.

    By it other nodes know this one in secure aggregation. Give it to the owners of the other nodes,
    who list it under node-keys of their policies. The secret stays in the file PATH, else in
    node-key of the node's state folder.
    """
    from flower_privsyn.client_apps.secure import key_file, make_node_key, read_node_key

    file = key_file({}) if path is None else expanded(path).absolute()
    found = make_node_key(file) if init else read_node_key(file)
    print(found.public.hex())
    return 0


@node.command(cls=PlainCommand)
def digest(folder: Annotated[str, typer.Argument(metavar="FOLDER", hidden=True)]) -> int:
    """Print the SHA-256 of a model folder, as a policy states it.

    FOLDER is the model.
    """
    from flower_privsyn.client_apps.guard import model_digest

    model = expanded(folder)
    if not model.is_dir():
        raise ConfigError(f"{model} is no folder.")
    print(model_digest(model))
    return 0
