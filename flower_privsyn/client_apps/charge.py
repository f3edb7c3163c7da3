"""One answer of a node, and what answers to a round are released as."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flower_privsyn.privacy import (
    Correlation,
    FixedSizeSampling,
    FullParticipation,
    NeighboringRelation,
    PoissonSampling,
    Release,
    ReleaseSpec,
    Sampling,
)
from flower_privsyn.privacy.accounting import LARGEST_MULTIPLIER, accounted
from flower_privsyn.secure_aggregation import Terms

Key: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One answer of a node, as its ledger knows it.

    Attributes:
        server: Name the owner gives the server; "" where none is given.
        run: Flower's number of the run.
        node: Flower's number of the node.
        partition: (partition-id, num-partitions) where the node holds this part of a data set that
            is dealt to several; None where it holds all of it.
        spec: What the round releases, as the server states it: the round is 1-based, the
            sensitivity at least `clip_norm`, the sampling that of this node's users, and the
            relation the one that the run claims, which the account does not use.
        num_rounds: Rounds that the run says it has.
        clip_norm: Bound on the norm of one user's answer.
        coins: Digest of the key that the users' coins are flipped with; "" where there are none.
        classes: Of documents, which the question is about; none where it is about all.
        secure: Under secure aggregation, how many nodes are in the sum, and how many of them may
            collude; the others add the noise, so they and not the server are trusted with it.
    """

    server: str
    run: int
    node: int
    partition: tuple[int, int] | None
    spec: ReleaseSpec
    num_rounds: int
    clip_norm: float
    coins: str = ""
    classes: tuple[str, ...] = ()
    secure: Terms | None = None

    @property
    def trust(self) -> str:
        """Who must keep their word for the noise to be what the charge says."""
        return "server" if self.secure is None else "nodes"

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
        line: dict[str, Any] = {
            "event": "charged",
            "server": self.server,
            "run": self.run,
            "node": self.node,
            "partition": None if self.partition is None else list(self.partition),
            "num_rounds": self.num_rounds,
            "clip_norm": self.clip_norm,
            **self.spec.to_dict(known=streams),
            "coins": self.coins,
            "trust": self.trust,
        }
        if self.classes:
            line["classes"] = list(self.classes)
        if self.secure is not None:
            line["least_nodes"] = self.secure.least_nodes
            line["colluding_nodes"] = self.secure.colluding
        return line

    @staticmethod
    def from_line(line: Mapping[str, Any], streams: Mapping[str, Correlation]) -> Charge:
        """Rebuild a charge; raises KeyError, TypeError or ValueError for a damaged line."""
        part = line["partition"]
        return Charge(
            server=str(line["server"]),
            run=int(line["run"]),
            node=int(line["node"]),
            partition=None if part is None else (int(part[0]), int(part[1])),
            spec=ReleaseSpec.from_dict(line, known=streams),
            num_rounds=int(line["num_rounds"]),
            clip_norm=float(line["clip_norm"]),
            coins=str(line.get("coins", "")),
            classes=tuple(map(str, line.get("classes", []))),
            secure=None
            if line.get("trust", "server") == "server"
            else Terms(least_nodes=line["least_nodes"], colluding=line["colluding_nodes"]),
        )


def planned_release(
    *,
    noise_multiplier: float,
    sampling: Sampling,
    relation: NeighboringRelation,
    max_nodes_per_user: int = 1,
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
        noise_multiplier=min(accounted(noise_multiplier), LARGEST_MULTIPLIER),
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
    elif _copies(group) > 1 or any(
        (charge.spec.sampling, charge.spec.max_nodes_per_user) != (sampling, nodes)
        for charge in group
    ):
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
    copies = _copies(asked)
    if copies > 1:
        deviation = min(charge.spec.mechanism.standard_deviation for charge in asked)
        # What is asked twice here is asked twice on the user's other nodes too, whose accounts
        # are kept elsewhere.
        nodes = max(charge.spec.max_nodes_per_user for charge in asked)
        here = max(Counter((charge.node, charge.partition) for charge in asked).values())
        most = max(copies, nodes * here) * max(charge.clip_norm for charge in asked)
        multiplier = min(multiplier, deviation / most)
    return multiplier


def _copies(asked: Sequence[Charge]) -> int:
    """In how many answers of one round a user can be; parts of one deal share no user."""
    parts = Counter(charge.partition for charge in asked)
    deals = {None if part is None else part[1] for part in parts}
    return max(parts.values()) if None not in deals and len(deals) == 1 else len(asked)
