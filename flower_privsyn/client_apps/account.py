"""What a node's users have spent: over all runs of all servers, from noise multipliers alone."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import InstanceOf, TypeAdapter

from flower_privsyn import files
from flower_privsyn.client_apps.policy import NodePolicy
from flower_privsyn.environment import NODE_LEDGERS
from flower_privsyn.errors import ConfigError, LedgerError, NotAllowedError
from flower_privsyn.files import expanded, os_errors_as, own_folder, state_folder, try_file
from flower_privsyn.privacy import (
    Correlation,
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    Release,
    ReleaseSpec,
    Sampling,
    release_epsilon,
)
from flower_privsyn.privacy.accounting import accounted
from flower_privsyn.privacy.ledger import LedgerFile, damaged, header
from flower_privsyn.secure_aggregation.terms import Terms

Key: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One answer of a node, as its ledger knows it.

    Attributes:
        server: Name the owner gives the server; "" where none is given.
        run: Flower's number of the run.
        node: Flower's number of the node.
        spec: What the round releases, as the server states it: the round is 1-based, the
            sensitivity at least `clip_norm`, the sampling that of this node's users, and the
            relation the one that the run claims, which the account does not use.
        num_rounds: Rounds that the run says it has.
        clip_norm: Bound on the norm of one user's answer.
        sampling_key_digest: Of the key that the users' coins are flipped with; "" where there are
            none.
        classes: Of documents, which the question is about; none where it is about all.
        secure: Under secure aggregation, how many nodes are in the sum, and how many of them may
            collude; the others add the noise, so they and not the server are trusted with it.
    """

    server: str
    run: int
    node: int
    spec: InstanceOf[ReleaseSpec]
    num_rounds: int
    clip_norm: float
    sampling_key_digest: str = ""
    classes: tuple[str, ...] = ()
    secure: Terms | None = None

    @property
    def key(self) -> Key:
        """What is released as one: a round of a run, or all rounds of a stream of noise."""
        if self.spec.correlation is not None:
            return (self.server, "stream", self.spec.correlation.stream)
        return (self.server, str(self.run), str(self.spec.round))

    def to_line(self, *, streams: Mapping[str, Correlation]) -> dict[str, Any]:
        """The charge as it stands in the ledger; a correlation stands there once.

        Args:
            streams: The correlations that stand there, by the names of their streams.
        """
        line = _FORM.dump_python(self, mode="json", exclude={"spec"})
        return {"event": "charged", **line, **self.spec.to_dict(known=streams)}

    @staticmethod
    def from_line(line: Mapping[str, Any], streams: Mapping[str, Correlation]) -> Charge:
        """Rebuild a charge; raises KeyError, TypeError or ValueError for a damaged line."""
        spec = ReleaseSpec.from_dict(line, known=streams)
        return _FORM.validate_python({**line, "spec": spec})


_FORM = TypeAdapter(Charge)


def planned_release(
    *,
    noise_multiplier: float,
    sampling: Sampling,
    relation: NeighboringRelation,
    max_nodes_per_user: int,
) -> Release:
    """One noisy sum under the owner's relation, whatever relation the run claims.

    Args:
        noise_multiplier: At least 0, over a user's answers of all nodes together.
        sampling: How this node's users are drawn.
        relation: The owner's.
        max_nodes_per_user: On how many nodes one user may be; with more than one nothing is counted
            as hidden by who is drawn.
    """
    alone = max_nodes_per_user == 1
    if isinstance(sampling, PoissonSampling) and alone:
        sampling = PoissonSampling(sampling.rate)
    elif isinstance(sampling, FixedSizeSampling):
        if not alone or relation is NeighboringRelation.ADD_REMOVE:
            # Who joins takes somebody's place in the cohort: the sum moves by twice the norm.
            sampling, noise_multiplier = FullParticipation(), noise_multiplier / 2.0
    else:
        sampling = FullParticipation()
    return Release(
        noise_multiplier=accounted(noise_multiplier),
        sampling=sampling,
        relation=relation,
    )


def release_of(group: Sequence[Charge], relation: NeighboringRelation) -> Release:
    """What the answers to one round, or to the rounds of one stream, are released as."""
    rounds: dict[int, list[Charge]] = {}
    for charge in group:
        rounds.setdefault(charge.spec.round, []).append(charge)
    multiplier = min(_multiplier(asked) for asked in rounds.values())
    first = group[0].spec
    correlation, sampling, nodes = first.correlation, first.sampling, first.max_nodes_per_user
    if correlation is not None:
        multiplier = correlation.noise_multiplier(multiplier)
        sampling = FullParticipation()
    elif len(group) > 1:
        # Coins flipped on their own in several answers are no coin of one answer.
        sampling = FullParticipation()
    return planned_release(
        noise_multiplier=multiplier,
        sampling=sampling,
        relation=relation,
        max_nodes_per_user=nodes,
    )


def _multiplier(asked: Sequence[Charge]) -> float:
    """The noise of one round over what one user can move in all of its answers together."""
    multiplier = min(charge.spec.mechanism.noise_multiplier for charge in asked)
    if len(asked) > 1:
        deviation = min(charge.spec.mechanism.standard_deviation for charge in asked)
        # What is asked twice here is asked twice on the user's other nodes too, whose accounts
        # are kept elsewhere.
        nodes = max(charge.spec.max_nodes_per_user for charge in asked)
        here = max(Counter(charge.node for charge in asked).values())
        most = max(len(asked), nodes * here) * max(charge.clip_norm for charge in asked)
        multiplier = min(multiplier, deviation / most)
    return multiplier


_VERSION = 3
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Written and removed before a run: some charges are as long.
_TRIED_BYTES = 2**13
# The accountants are deterministic; the room is for other platforms.
_TOLERANCE = 1e-9


@dataclass
class NodeAccount:
    """Everything that was answered from one data set.

    Attributes:
        dataset: Its name.
        charges: Every answer, oldest first.
    """

    dataset: str
    charges: list[Charge] = field(default_factory=list)
    _streams: dict[str, Correlation] = field(default_factory=dict)

    def releases(self, relation: NeighboringRelation) -> Counter[Release]:
        """What the answers went into, as the accountant takes it, under the owner's relation.

        Formal guarantee:
            Unit: one user of the data set. The composition of these releases is an upper bound on
            what the user lost to everybody who sees the released sums, provided that the servers
            added the noise they stated and released one sum per round, and that no server chose
            later noise, coins or rounds by what was released earlier. Where one does, a limit on
            this epsilon still holds for Gaussian rounds that everybody is in (their losses add up
            to one number, whatever the order), and not to the letter where coins are involved.
            Nothing about a server that keeps raw sums.
        """
        groups: dict[Key, list[Charge]] = {}
        for charge in self.charges:
            groups.setdefault(charge.key, []).append(charge)
        return Counter(release_of(group, relation) for group in groups.values())

    def epsilon(self, policy: NodePolicy, extra: Mapping[Release, int] | None = None) -> float:
        """Epsilon of all answers at the owner's delta, and of some more releases."""
        total = self.releases(policy.relation)
        total.update(extra or {})
        return release_epsilon(total, delta=policy.delta)

    def runs(self) -> list[tuple[str, int, list[Charge]]]:
        """Server, run and answers of every run, in the order of their first answers."""
        found: dict[tuple[str, int], list[Charge]] = {}
        for charge in self.charges:
            found.setdefault((charge.server, charge.run), []).append(charge)
        return [(server, run, charges) for (server, run), charges in found.items()]

    def check(self, charge: Charge, policy: NodePolicy) -> None:
        """Refuse an answer that would cost more than the owner allows.

        Raises:
            NotAllowedError: It would, the rounds of its stream were charged as others, or its
                users' coins were flipped before.
        """
        self._check_stream(charge)
        self._check_sampling_key(charge)
        if math.isinf(policy.max_epsilon):
            return
        with_it = NodeAccount(self.dataset, [*self.charges, charge]).releases(policy.relation)
        known = any(old.key == charge.key for old in self.charges)
        if known and with_it == self.releases(policy.relation):
            return  # paid for with its stream, or by others of its round
        cost = release_epsilon(with_it, delta=policy.delta)
        if not within(cost, policy):
            raise self.refusal(
                policy,
                f"Round {charge.spec.round} of {run_name(charge.server, charge.run)} "
                f"({charge.spec.query}, noise multiplier "
                f"{charge.spec.mechanism.noise_multiplier:g})",
                cost,
            )

    def refusal(self, policy: NodePolicy, what: str, cost: float) -> NotAllowedError:
        """The sentence that says what would be spent, what is allowed, and by whom it was."""
        spent = "nothing was spent so far"
        runs = ", ".join(
            f"{run_name(server, run)} ({rounds_text(charges)})"
            for server, run, charges in self.runs()
        )
        if runs:
            spent = f"{_shown(self.epsilon(policy))} was spent by {runs}"
        return policy.refusal(
            "max-epsilon",
            f'{what} would bring the epsilon of data set "{self.dataset}" to {_shown(cost)} at '
            f"delta {policy.delta:g} ({policy.relation.value}); the owner allows "
            f"{policy.max_epsilon:g}, and {spent}",
        )

    def _check_stream(self, charge: Charge) -> None:
        """Refuse a round of correlated noise that is not what the others were charged as."""
        first = next((old for old in self.charges if old.key == charge.key), None)
        correlation = charge.spec.correlation
        if correlation is None or first is None:
            return
        if not charge.spec.same_noise_as(first.spec):
            raise NotAllowedError(
                f"Round {charge.spec.round} of {run_name(charge.server, charge.run)} claims to "
                f"belong to the noise stream {correlation.stream} and has another "
                "correlation, noise multiplier or sampling than the stream was charged with."
            )

    def _check_sampling_key(self, charge: Charge) -> None:
        """Refuse a sampling key that was used before: coins shown a second time hide nobody."""
        digest = charge.sampling_key_digest
        used = (old for old in self.charges if digest and old.sampling_key_digest == digest)
        old = next(used, charge)
        if old.key != charge.key:
            raise NotAllowedError(
                f"Round {charge.spec.round} of {run_name(charge.server, charge.run)} draws its "
                f"users with the sampling key of round {old.spec.round} of "
                f"{run_name(old.server, old.run)}; every round needs one of its own."
            )


class NodeLedger:
    """The account of one data set on the node's disk, shared by all processes of the machine.

    Every answer is one line, on the disk before the answer leaves. A process killed before its line
    is complete has answered nothing; what it left gives way to the next line. A line whose answer
    never left stays charged.

    The file is JSON, one object per line, mode 0600 in a folder that nobody else can write, locked
    while a line is written, each line with the SHA-256 of the one before. Who can write the folder
    can shorten or delete it, and the account with it.

    Two names are two accounts, also of the same data.

    Args:
        dataset: Name of the data set.
        folder: Of the ledgers; default `ledger_folder()`.
    """

    def __init__(self, dataset: str, *, folder: Path | None = None) -> None:
        self._dataset = dataset
        self._folder = folder or ledger_folder()
        self.path = self._folder / f"{_file_name(dataset)}.jsonl"

    def account(self) -> NodeAccount:
        """The account as it stands; nothing is locked or charged.

        Raises:
            LedgerError: The file is damaged before its last line.
        """
        if not self.path.exists():
            return NodeAccount(self._dataset)
        return self._account(LedgerFile.read(self.path).lines)

    def check_writable(self) -> None:
        """Refuse a folder that takes no charge, before a run asks anything and pays for it.

        Raises:
            LedgerError: The folder or the file cannot be written, or others can write there.
        """
        with os_errors_as(LedgerError, f"{self._folder} cannot be written"):
            own_folder(self._folder)
            try_file(self._folder, size=_TRIED_BYTES)
            if self.path.exists():
                self.path.open("ab").close()

    def charge(self, charge: Charge, policy: NodePolicy) -> None:
        """Charge an answer; it may leave once this returns.

        An answer to a request that was answered before is another answer: what the node reads may
        have changed since.

        Raises:
            NotAllowedError: The owner's limit would be passed; nothing was written.
            LedgerError: The file is damaged or cannot be written.
        """
        with os_errors_as(LedgerError, f"{self._folder} cannot be written"):
            own_folder(self._folder)
        file = self._open()  # other processes wait until it is closed
        try:
            account = self._account(file.lines)
            account.check(charge, policy)
            file.append({**charge.to_line(streams=account._streams), "time": files.now()})
        finally:
            file.close()

    def _open(self) -> LedgerFile:
        if not self.path.exists():
            opening = {
                "event": "opened", "kind": "node", "version": _VERSION, "dataset": self._dataset,
                "time": files.now(),
            }  # fmt: skip
            try:
                LedgerFile.create(self.path, opening).close()
            except LedgerError:
                if not self.path.exists():  # else another process was first, and is right
                    raise
        return LedgerFile.open(self.path, wait=True)

    def _account(self, lines: Sequence[Mapping[str, Any]]) -> NodeAccount:
        found = header(self.path, lines, kind="node", version=_VERSION).get("dataset")
        if found != self._dataset:
            raise LedgerError(
                f'{self.path} is the ledger of data set "{found}", not of "{self._dataset}".'
            )
        account = NodeAccount(self._dataset)
        for number, line in enumerate(lines[1:], start=2):
            try:
                if line["event"] != "charged":
                    raise damaged(self.path, number, f"unknown event {line['event']!r}")
                charge = Charge.from_line(line, account._streams)
            except (KeyError, TypeError, ValueError) as error:
                raise damaged(self.path, number, "a field is missing or out of range") from error
            account.charges.append(charge)
            if (correlation := charge.spec.correlation) is not None:
                account._streams.setdefault(correlation.stream, correlation)
        return account


def ledger_folder() -> Path:
    """Where node ledgers are: PRIVSYN_NODE_LEDGERS, else `flower-privsyn/ledgers` in the user's
    state folder (`~/.local/state`).

    Raises:
        LedgerError: It is relative: started in another folder, a node would begin accounts anew.
    """  # noqa: D205 - one sentence
    folder = expanded(os.environ.get(NODE_LEDGERS) or state_folder() / "ledgers")
    if not folder.is_absolute():
        raise LedgerError(f"The folder {folder} of accounts ({NODE_LEDGERS}) must be absolute.")
    return folder


def datasets() -> list[str]:
    """The names of the data sets that have a ledger."""
    found = []
    for path in sorted(ledger_folder().glob("*.jsonl")):
        lines = LedgerFile.read(path).lines
        if lines and lines[0].get("kind") == "node":
            found.append(str(lines[0]["dataset"]))
    return found


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
                "rounds": sorted({charge.spec.round for charge in charges}),
                "num_rounds": max(charge.num_rounds for charge in charges),
                "queries": sorted({charge.spec.query for charge in charges}),
                "classes": sorted({name for charge in charges for name in charge.classes}),
                "noise_multipliers": sorted(
                    {charge.spec.mechanism.noise_multiplier for charge in charges}
                ),
                "sampling": sorted({_sampling(charge) for charge in charges}),
                "relation": sorted({charge.spec.relation.value for charge in charges}),
                "noise": sorted({_trust(charge) for charge in charges}),
                "epsilon_alone": _finite(alone.epsilon(policy)),
            }
        )
    return {
        "dataset": account.dataset,
        "delta": policy.delta,
        "relation": policy.relation.value,
        "epsilon": _finite(epsilon),
        "limit": _finite(policy.max_epsilon),
        "left": _finite(max(policy.max_epsilon - epsilon, 0.0)),
        "runs": runs,
    }


def within(cost: float, policy: NodePolicy) -> bool:
    """Whether an epsilon is one the owner allows."""
    return cost <= policy.max_epsilon * (1.0 + _TOLERANCE)


def run_name(server: str, run: int) -> str:
    """A run as sentences name it."""
    return f"run {run}" + (f' of server "{server}"' if server else "")


def rounds_text(charges: Sequence[Charge]) -> str:
    """How many rounds of a run were answered."""
    answered = len({charge.spec.round for charge in charges})
    return f"{answered} of {max(charge.num_rounds for charge in charges)} rounds"


def _file_name(dataset: str) -> str:
    if _PLAIN_NAME.fullmatch(dataset):
        return dataset
    if not dataset:
        raise ConfigError("dataset must not be empty.")
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(dataset).name).strip(".-")[:40] or "data"
    digest = hashlib.blake2b(json.dumps(dataset).encode(), digest_size=8).hexdigest()
    return f"{readable}-{digest}"


def _shown(epsilon: float) -> str:
    return f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinity"


def _trust(charge: Charge) -> str:
    if charge.secure is None:
        return "central, server trusted"
    return f"of {charge.secure.honest} honest nodes, {charge.secure.colluding} may collude"


def _sampling(charge: Charge) -> str:
    method = charge.spec.sampling.method
    return method if method in ("full", "cyclic") else f"{method} {charge.spec.sampling.rate:.4g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
