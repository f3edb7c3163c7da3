"""Between a request and its answer: the owner's policy and the account of the node's data set."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context

from flower_privsyn.checks import raised_as
from flower_privsyn.client_apps.account import Charge, NodeLedger, planned_release, run_name, within
from flower_privsyn.client_apps.policy import DEFAULTS, NodePolicy
from flower_privsyn.environment import NODE_POLICY
from flower_privsyn.errors import ConfigError, NotAllowedError
from flower_privsyn.files import expanded, os_errors_as, sha256_of, user_path
from flower_privsyn.messages import wire
from flower_privsyn.privacy import FixedSizeSampling, PoissonSampling, Release
from flower_privsyn.secure_aggregation.keys import NodeKey
from flower_privsyn.secure_aggregation.terms import Terms

#: Flower shows what this logger says in the log of a SuperNode.
logger = logging.getLogger("flwr.privsyn")

#: A data set with its configuration and split: `owner/name:config:split`, `folder::split`.
_PART_OF = re.compile(r"([^:]+)(?::[\w.-]*){1,2}")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

_simulated = contextvars.ContextVar("simulated", default=False)


@contextlib.contextmanager
def simulated(whether: bool = True) -> Iterator[None]:
    """Say whether the nodes called in this block stand for those of a simulation."""
    token = _simulated.set(whether)
    try:
        yield
    finally:
        _simulated.reset(token)


def in_simulation() -> bool:
    """Whether this process is a worker of Flower's simulation, or stands in for one.

    Flower runs the nodes of a simulation in Ray actors of its own, and each message of a SuperNode
    in a plain process (`flwr-clientapp`). Nothing that a server or a configuration says is looked
    at: `partition-id` and small run ids are found in deployments too.
    """
    if _simulated.get():
        return True
    ray = sys.modules.get("ray")
    if ray is None or "flwr.simulation.ray_transport.ray_actor" not in sys.modules:
        return False
    return bool(ray.is_initialized() and ray.get_runtime_context().get_actor_id())


class NodeGuard:
    """What one node may answer.

    In a simulation, where all nodes are dealt from one person's file, there is no owner to ask and
    no account is kept. Everywhere else both are always there.

    Args:
        policy: What the owner allows; None for everything, without an account.
        node_config: The node's own configuration. `server` names the server of the SuperNode: the
            process that answers cannot see whom its SuperNode is connected to, so the owner states
            it. `dataset` names the account. `label-column` names the column of classes, and with it
            allows questions of them.

    Attributes:
        server: The name of the server; "" where none is given.
        dataset: The name of the data set whose account is kept; "" where none is.
        ledger: The account; None where none is kept.
    """

    def __init__(self, policy: NodePolicy | None, node_config: Mapping[str, Any]) -> None:
        self._policy = policy
        self._names_labels = bool(node_config.get("label-column"))
        self.server = str(node_config.get("server", ""))
        self.dataset = ""
        self.ledger = None
        if policy is not None:
            self.dataset = dataset_name(node_config, policy)
            self.ledger = NodeLedger(self.dataset)

    def check_model(self, kind: Literal["embedding", "trained"], name: str) -> str:
        """Refuse a model that the server may not name.

        Returns:
            The SHA-256 its files must have; "" for any.

        Raises:
            NotAllowedError: The policy does not name it.
        """
        if self._policy is None:
            return ""
        models = (
            self._policy.embedding_models if kind == "embedding" else self._policy.trained_models
        )
        if name not in models:
            allowed = ", ".join(f'"{model}"' for model in models) or "none"
            raise self._policy.refusal(
                f"{kind}-models",
                f'The server names the {kind} model "{name}"; the owner allows {allowed}',
            )
        return models[name]

    def check_classes(self, classes: Sequence[str]) -> None:
        """Refuse a question of classes where the owner has not named the column they stand in.

        A label is an attribute of its own, such as a diagnosis. That it is called as every app
        calls it is no consent to be asked about it.

        Args:
            classes: Which the request names; none where it names none.

        Raises:
            NotAllowedError: This is no simulation, and the node's own configuration has no
                `label-column`.
        """
        if classes and self._policy is not None and not self._names_labels:
            raise NotAllowedError(
                f"The run asks about {len(classes)} classes of documents; this node's owner names "
                "no column of labels, and naming it is what allows that (--node-config "
                "'label-column=\"label\"')."
            )

    def trains(self, name: str) -> bool:
        """Whether the owner lets a model of that name be trained."""
        return self._policy is not None and name in self._policy.trained_models

    def check_files(self, kind: Literal["embedding", "trained"], name: str) -> str:
        """Refuse a model whose files are not the ones the owner allowed, before it is loaded.

        Returns:
            What to load: the folder whose files were compared, so that the name is looked up
            once; the name itself where the owner allows any files.

        Raises:
            NotAllowedError: The policy does not name it, or with another digest.
            ModelError: Its files are not on this machine.
        """
        wanted = self.check_model(kind, name)
        if not wanted or self._policy is None:
            return name
        folder = model_files(kind, name)
        found = model_digest(folder)
        if found != wanted.lower():
            raise self._policy.refusal(
                f"{kind}-models",
                f'The files of the {kind} model "{name}" have SHA-256 {found}; the owner allows '
                f"{wanted}",
            )
        return str(folder)

    def allowed_nodes(self, own: NodeKey) -> frozenset[bytes] | None:
        """The keys of nodes that this one aggregates with; None where one person owns all nodes.

        Args:
            own: This node's key.

        Raises:
            NotAllowedError: The owner lists none, or not this node's own.
        """
        if self._policy is None:
            return None
        keys = frozenset(bytes.fromhex(key) for key in self._policy.node_keys)
        if own.public not in keys:
            listed = f"{len(keys)} keys without this node's own" if keys else "none"
            raise self._policy.refusal(
                "node-keys",
                "A run of secure aggregation is answered where the owner lists the keys of all "
                f"nodes, this one's ({own.public.hex()}) among them; listed are {listed}",
            )
        return keys

    def check_terms(self, terms: Terms, nodes: int) -> None:
        """Refuse a round of secure aggregation that the owner does not allow; see the policy's.

        Raises:
            NotAllowedError: The owner does not allow it.
        """
        if self._policy is not None:
            self._policy.check_terms(terms, nodes)

    def check_plan(self, plan: wire.Announcement, run: int, *, max_nodes_per_user: int = 1) -> None:
        """Refuse a run that this node would refuse later, before anything is spent.

        Args:
            plan: What the run says of itself.
            run: Flower's number of the run.
            max_nodes_per_user: On how many nodes one user may be.

        Raises:
            NotAllowedError: The owner does not allow its questions or what they cost together.
            LedgerError: The account cannot be read, or no answer could be charged to it.
        """
        policy = self._policy
        if policy is None or self.ledger is None:
            return
        policy.check_run(self.server, plan.num_rounds)
        self.ledger.check_writable()
        for query in plan.queries:
            policy.check_question(
                query=query,
                clip_norm=plan.clip_norm,
                noise_multiplier=plan.noise_multiplier,
                secure=plan.secure,
            )
        if not plan.to_come:
            return
        account = self.ledger.account()
        stream = (self.server, "stream", plan.stream)
        if plan.stream and any(charge.key == stream for charge in account.charges):
            return  # paid for with its first round
        releases = Counter[Release]()
        for asked in plan.to_come:
            release = planned_release(
                noise_multiplier=asked.noise_multiplier,
                sampling=asked.sampling,
                relation=policy.relation,
                max_nodes_per_user=max_nodes_per_user,
            )
            releases[release] += asked.count
        cost = account.epsilon(policy, releases)
        if not within(cost, policy):
            raise account.refusal(
                policy,
                f"The plan of {run_name(self.server, run)}, num-rounds = {plan.num_rounds} and "
                f"noise multiplier {plan.noise_multiplier:g},",
                cost,
            )

    def check(self, charge: Charge) -> None:
        """Refuse a question before any work is done for it; nothing is charged.

        Raises:
            NotAllowedError: The owner does not allow it, or what it costs.
            LedgerError: The account cannot be read.
        """
        policy = self._policy
        if policy is None or self.ledger is None:
            return
        policy.check_run(self.server, charge.num_rounds)
        multiplier = charge.spec.mechanism.noise_multiplier
        if charge.spec.correlation is not None:
            multiplier = charge.spec.correlation.noise_multiplier(multiplier)
        policy.check_question(
            query=charge.spec.query,
            clip_norm=charge.clip_norm,
            noise_multiplier=multiplier,
            secure=charge.secure is not None,
        )
        self.ledger.account().check(charge, policy)

    def charge(self, charge: Charge) -> None:
        """Charge an answer; it may leave once this returns.

        Args:
            charge: The answer.

        Raises:
            NotAllowedError: The owner's limit would be passed.
            LedgerError: The account cannot be written.
        """
        if self._policy is not None and self.ledger is not None:
            self.ledger.charge(charge, self._policy)


def policy_file() -> Path:
    """The default place: `flower-privsyn/node-policy.toml` in the user's configuration folder."""
    folder = expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    return folder / "flower-privsyn" / "node-policy.toml"


def find_policy(node_config: Mapping[str, Any]) -> NodePolicy:
    """The policy in force: the named file, else the one in the default place, else the defaults.

    `policy` of the node's configuration names it, or PRIVSYN_NODE_POLICY.

    Raises:
        ConfigError: A file that is named is missing, or a file cannot be used.
    """
    named = str(node_config.get("policy", "") or os.environ.get(NODE_POLICY, ""))
    path = user_path(named) if named else policy_file()
    with os_errors_as(ConfigError, f"The node policy {path} cannot be read"):
        return NodePolicy.read(path) if named or path.exists() else NodePolicy()


def dataset_name(node_config: Mapping[str, Any], policy: NodePolicy) -> str:
    """The data set whose account a node keeps.

    The owner's name for it, else the absolute path of the node's own `data`, else "default". What
    a run says of the data, or how its app is called, is not looked at: the same people must not
    get a fresh account with every new app. Links are not followed: one that leads to a new copy
    of the data every month would make a fresh account of the same people every month. All
    configurations and splits of a data set have one account, for the same people may be in each.

    Raises:
        ConfigError: `dataset` is no text.
    """
    named = node_config.get("dataset", "")
    if not isinstance(named, str):
        raise ConfigError(f"node-config dataset must be a name, got {named!r}.")
    return named or policy.dataset or data_name(node_config) or "default"


def data_name(node_config: Mapping[str, Any]) -> str:
    """What the node's own `data` are: an absolute path, else as it is named; "" where it has none.

    Links and parts of a data set are as in `dataset_name`.
    """
    data = str(node_config.get("data", ""))
    if not data:
        return ""
    path = user_path(data)
    if not path.exists() and (part := _PART_OF.fullmatch(data)):
        whole = user_path(part[1])
        if whole.is_dir() or _HUB_NAME.fullmatch(part[1]):
            data, path = part[1], whole
    return os.path.abspath(path) if path.exists() else data  # noqa: PTH100 - resolve follows links


def guard_of(context: Context) -> NodeGuard:
    """The owner's word, and a line in the node's log that says which policy is in force.

    Raises:
        NotAllowedError: The policy cannot be used; the node then answers nothing.
    """
    own = context.node_config
    if in_simulation():
        return NodeGuard(None, own)
    with raised_as(NotAllowedError, ConfigError):
        policy = find_policy(own)
        guard = NodeGuard(policy, own)
    where = policy.source
    if where == DEFAULTS:
        where += f" (there is no {policy_file()}; `privsyn node policy --init` writes one)"
    logger.info(
        "node policy: %s; at most epsilon %g in total at delta %g (%s)",
        where,
        policy.max_epsilon,
        policy.delta,
        policy.relation.value,
    )
    return guard


def charge_of(ask: wire.Ask, context: Context, guard: NodeGuard) -> Charge:
    """What an answer is charged as in the node's own account.

    The key that users' coins are flipped with is in it as a digest, where the account counts coins.
    """
    coins = isinstance(ask.release.sampling, PoissonSampling | FixedSizeSampling)
    counted = coins and ask.release.correlation is None
    key_digest = hashlib.blake2b(ask.sampling_key, digest_size=16).hexdigest()
    return Charge(
        server=guard.server,
        run=context.run_id,
        node=context.node_id,
        spec=ask.release,
        num_rounds=ask.num_rounds,
        clip_norm=ask.query.clip_norm,
        sampling_key_digest=key_digest if counted else "",
        classes=ask.data.classes,
        secure=ask.secure,
    )


def model_digest(folder: Path) -> str:
    """SHA-256 over the names and contents of all files of a model folder, code included.

    Args:
        folder: The folder; links in it count as what they lead to.
    """
    total = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path.relative_to(folder).as_posix()):
        total.update(f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n".encode())
    return total.hexdigest()


def model_files(kind: Literal["embedding", "trained"], name: str) -> Path:
    """Where a model lies; one of the hub is downloaded first if it has to be.

    Raises:
        ModelError: There is no such model.
    """
    if kind == "embedding":
        from flower_privsyn.embedding.embedder import model_folder

        return model_folder(name)
    from flower_privsyn.models import pretrained

    return Path(pretrained.model_folder(name))
