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
    GaussianMechanism,
    NeighboringRelation,
    PoissonSampling,
    Release,
    Sampling,
    mechanism_from_dict,
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
        round_number: 1-based.
        num_rounds: Rounds that the run says it has.
        query: Name of the query.
        clip_norm: Bound on the norm of one user's answer.
        mechanism: Noise of the sum, as the server states it. Its sensitivity is at least
            `clip_norm`.
        relation: Neighbouring relation that the run claims; not used by the account.
        sampling: How this node's users are drawn.
        correlation: For correlated noise, the rounds that this one belongs to.
        max_nodes_per_user: On how many nodes one user may be, as the run says; its noise is for
            that many answers.
        coins: Digest of the key that the users' coins are flipped with; "" where there are none.
        classes: Of documents, which the question is about; none where it is about all.
        secure: Under secure aggregation, how many nodes are in the sum, and how many of them may
            collude; the others add the noise, so they and not the server are trusted with it.
    """

    server: str
    run: int
    node: int
    partition: tuple[int, int] | None
    round_number: int
    num_rounds: int
    query: str
    clip_norm: float
    mechanism: GaussianMechanism
    relation: NeighboringRelation
    sampling: Sampling
    correlation: Correlation | None = None
    max_nodes_per_user: int = 1
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
        if self.correlation is not None:
            return (self.server, "stream", self.correlation.stream)
        return (self.server, str(self.run), str(self.round_number))

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
            "round": self.round_number,
            "num_rounds": self.num_rounds,
            "query": self.query,
            "clip_norm": self.clip_norm,
            **self.mechanism.to_dict(),
            "relation": self.relation.value,
            "sampling": self.sampling.to_dict(),
            "max_nodes_per_user": self.max_nodes_per_user,
            "coins": self.coins,
            "trust": self.trust,
        }
        if self.classes:
            line["classes"] = list(self.classes)
        if self.secure is not None:
            line["least_nodes"] = self.secure.least_nodes
            line["colluding_nodes"] = self.secure.colluding
        if self.correlation is not None:
            line["stream"] = self.correlation.stream
            # A name proves nothing: another server may give it to other noise.
            if streams.get(self.correlation.stream) != self.correlation:
                line["correlation"] = self.correlation.to_dict()
        return line

    @staticmethod
    def from_line(line: Mapping[str, Any], streams: Mapping[str, Correlation]) -> Charge:
        """Rebuild a charge; raises KeyError, TypeError or ValueError for a damaged line."""
        correlation = None
        if "correlation" in line:
            correlation = Correlation.from_dict(line["correlation"])
        elif "stream" in line:
            correlation = streams[line["stream"]]
        part = line["partition"]
        return Charge(
            server=str(line["server"]),
            run=int(line["run"]),
            node=int(line["node"]),
            partition=None if part is None else (int(part[0]), int(part[1])),
            round_number=int(line["round"]),
            num_rounds=int(line["num_rounds"]),
            query=str(line["query"]),
            clip_norm=float(line["clip_norm"]),
            mechanism=mechanism_from_dict(line),
            relation=NeighboringRelation(line["relation"]),
            sampling=Sampling.from_dict(line["sampling"]),
            correlation=correlation,
            max_nodes_per_user=int(line["max_nodes_per_user"]),
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
        rounds.setdefault(charge.round_number, []).append(charge)
    multiplier = min(_multiplier(asked) for asked in rounds.values())
    correlation, sampling = group[0].correlation, group[0].sampling
    nodes = group[0].max_nodes_per_user
    if correlation is not None:
        multiplier = correlation.noise_multiplier(multiplier)
        sampling = FullParticipation()
    elif _copies(group) > 1 or any(
        (charge.sampling, charge.max_nodes_per_user) != (sampling, nodes) for charge in group
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
    multiplier = min(charge.mechanism.noise_multiplier for charge in asked)
    copies = _copies(asked)
    if copies > 1:
        deviation = min(charge.mechanism.standard_deviation for charge in asked)
        # What is asked twice here is asked twice on the user's other nodes too, whose accounts
        # are kept elsewhere.
        nodes = max(charge.max_nodes_per_user for charge in asked)
        here = max(Counter((charge.node, charge.partition) for charge in asked).values())
        most = max(copies, nodes * here) * max(charge.clip_norm for charge in asked)
        multiplier = min(multiplier, deviation / most)
    return multiplier


def _copies(asked: Sequence[Charge]) -> int:
    """In how many answers of one round a user can be; parts of one deal share no user."""
    parts = Counter(charge.partition for charge in asked)
    deals = {None if part is None else part[1] for part in parts}
    return max(parts.values()) if None not in deals and len(deals) == 1 else len(asked)
