"""How many nodes it takes: thresholds, and the graph of who shares masks with whom, by a bound.

And why the noise of several nodes is accounted as one Gaussian. Each of n nodes adds
rint(N(0, s^2)), s in steps of the grid.

Lemma. Let X_1, ..., X_n be independent, X_i = rint(N_i), N_i ~ N(0, s^2) with s >= 4 and n >= 2.
Modulo 2^64, their sum has a total variation distance of less than 2^-140 from rint(N + U), where
N ~ N(0, n s^2) and U is the sum of n - 1 independent variables, uniform on [-1/2, 1/2].

Proof. P[X_i = j] is the integral of the density of N_i over j +- 1/2, which is the density f_i of
N_i + V_i at j, V_i uniform on [-1/2, 1/2]. By Poisson's summation formula the characteristic
function of X_i is the sum over whole k of g(w + 2 pi k), g(w) = exp(-s^2 w^2 / 2) sinc(w / 2). That
of the sum of the X_i is the n-th power: the sum over all (k_1, ..., k_n) of the products of
g(w + 2 pi k_i). The same argument, the other way, gives P[rint(N + U) = j] as the density of
N + U + V at j, V uniform: its characteristic function is the sum over k of g(w + 2 pi k)^n. So the
difference D(w) is the sum over those (k_1, ..., k_n) that are not all equal. There the sum of
(w + 2 pi k_i)^2 is at least 4 pi^2 times the sum of the squared distances of the k_i from their
mean, at least 4 pi^2 (n - 1) / n. Giving nine tenths of the exponent to this bound and a tenth to
the sum, |D(w)| <= exp(-0.9 * 2 pi^2 s^2 (n - 1) / n) * (sum over k of
exp(-s^2 (w + 2 pi k)^2 / 20))^n, and the bracket is at most 1 + 10^-12 at s >= 4 for w in
[-pi, pi]. With n = 2 and s = 4 that is below 2^-204. Modulo 2^64 the two laws are inverse Fourier
sums of their characteristic functions at 2^64 points, so they differ by at most max |D| at every
residue, and in total variation by at most 2^63 max |D|. QED.

N + U is a Gaussian and something independent of it and of the data; for a sum x on the grid
x + rint(N + U) = rint(x + N + U) is post-processing of the Gaussian mechanism x + N, and so is
reading 64 bits modulo 2^64 as a number. Whatever colluding nodes put in or take out, and the noise
of more than t - c honest nodes, is independent of N and post-processing too. So privacy loss
distributions and the exact Gaussian apply, as they do to central noise. Delta grows by
(1 + e^epsilon) times the distance, per number and round: below 2^-80 for 2^30 numbers, a thousand
rounds and epsilon 10. Nodes refuse s < 4; in practice s is about 10^9. The draws are exact to 2^-44
(`flower_privsyn.privacy.randomness`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError
from flower_privsyn.secure_aggregation.keys import whole

LEAST_ROSTER: Final = 4
"""The fewest nodes among which one may collude with the server and one may be lost."""

MOST_NODES: Final = 10_000

LEAST_STEPS: Final = 4.0
"""Least standard deviation of one node's noise, in whole numbers: below, the sum of rounded normal
variates is no longer one rounded normal variate (see above)."""

#: Chance, in bits, that the colluding nodes stand too close together anywhere on the circle. Who
#: makes 2^40 sets of keys to find a circle that suits them still has 2^-40.
_COLLUSION_BITS: Final = 80

#: Chance, in bits, that nodes lost by accident stand too close together for a round to finish.
_LOSS_BITS: Final = 30


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What all nodes of a round agree on.

    Attributes:
        least_nodes: t, the fewest nodes whose answers, and whose noise, are in a sum.
        colluding: c, the nodes that are assumed to collude with the server, at most.

    Raises:
        ConfigError: A value is out of range, or colluding nodes could give a sum alone.
    """

    least_nodes: int
    colluding: int

    def __post_init__(self) -> None:
        check_whole("least_nodes", self.least_nodes, ge=2, le=MOST_NODES)
        check_whole("colluding_nodes", self.colluding, ge=0, le=MOST_NODES)
        if self.honest < 2:
            raise ConfigError(
                f"a sum of at least {self.least_nodes} nodes (least-nodes), {self.colluding} of "
                "which may collude with the server (colluding-nodes), leaves fewer than 2 honest "
                "ones: there would be nobody to hide among"
            )

    @property
    def honest(self) -> int:
        """T - c: the honest nodes whose noise is in every sum."""
        return self.least_nodes - self.colluding

    @property
    def noise_share(self) -> float:
        """Standard deviation of one node's noise over that of the whole sum: 1 / sqrt(t - c)."""
        return 1.0 / math.sqrt(self.honest)

    def signatures(self, nodes: int) -> int:
        """t_s: signatures on one set of survivors without which no node unmasks anything.

        Formal guarantee:
            2 t_s > n + c: of two sets that were each signed by t_s of n nodes, at least one honest
            node signed both, and an honest node signs one set.
        """
        return (nodes + self.colluding) // 2 + 1

    @classmethod
    def of(
        cls, nodes: int, *, least_nodes: int | None = None, colluding: int | None = None
    ) -> Terms:
        """The terms for a roster, where some are left open.

        Args:
            nodes: On the roster.
            least_nodes: t; by default all but an eighth of the nodes.
            colluding: c; by default a third of the nodes.

        Raises:
            ConfigError: The roster is too small for them.
        """
        if nodes < LEAST_ROSTER:
            raise ConfigError(
                f"secure aggregation takes at least {LEAST_ROSTER} nodes (num-nodes), so that one "
                f"may collude with the server and one be lost, got {nodes}"
            )
        colluding = nodes // 3 if colluding is None else colluding
        if least_nodes is None:
            least_nodes = max(nodes - math.ceil(nodes / 8), (nodes + colluding) // 2 + 1)
        terms = cls(least_nodes=least_nodes, colluding=colluding)
        terms.check_roster(nodes)
        return terms

    def check_roster(self, nodes: int) -> None:
        """Refuse a roster on which these terms prove nothing.

        Raises:
            ConfigError: It is too large, or the thresholds do not fit it.
        """
        if nodes > MOST_NODES:
            raise ConfigError(
                f"secure aggregation takes at most {MOST_NODES:,} nodes, got {nodes:,}"
            )
        if not self.signatures(nodes) <= self.least_nodes <= nodes:
            raise ConfigError(
                f"least-nodes must be between {self.signatures(nodes)} and {nodes} for {nodes} "
                f"nodes of which {self.colluding} may collude (colluding-nodes), got "
                f"{self.least_nodes}: of fewer, two sets of survivors could each be signed by "
                "enough nodes"
            )


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Who shares masks with whom: everybody, or on a circle those within reach on both sides.

    Every node is on the circle at a place that nobody chose (`Graph.order`). A `window` is that
    many places in a row; except with probability 2^-80, at most `crowd` nodes of a window
    collude. A set of nodes is *tight* when every window holds more than `crowd` of it, and so an
    honest one: then the honest nodes of the set, each of which shares masks with all others within
    a window on either side, are connected, **whoever chose which nodes are lost**. And every node
    has at least 2 crowd + 2 neighbours in the set, at most 2 crowd of which collude: with a
    threshold of 2 crowd + 1 shares, those who collude cannot put a secret together, and those who
    are left can.

    Attributes:
        nodes: n.
        window: places in a row; 0 where everybody shares masks with everybody.
        crowd: most colluding nodes in a window.
        threshold: shares that give a secret back.
    """

    nodes: int
    window: int
    crowd: int
    threshold: int

    @property
    def degree(self) -> int:
        """With how many others a node shares masks."""
        return 2 * self.window if self.window else self.nodes - 1

    def order(self, seed: bytes) -> list[int]:
        """Which index of the roster stands at which place.

        Args:
            seed: A digest of the round's keys.
        """
        # Sorting by digests: a uniform order that every machine computes alike.
        keys = [hashlib.sha256(seed + whole(index)).digest() for index in range(self.nodes)]
        return sorted(range(self.nodes), key=keys.__getitem__)

    def neighbours(self, order: Sequence[int], place: int) -> list[int]:
        """The indices of those with whom the node at a place shares masks."""
        if not self.window:
            return [index for index in order if index != order[place]]
        steps = [*range(-self.window, 0), *range(1, self.window + 1)]
        return [order[(place + step) % self.nodes] for step in steps]

    def is_tight(self, order: Sequence[int], kept: Collection[int]) -> bool:
        """Whether the honest ones of a set of indices are connected whoever left them out."""
        if not self.window:
            return True
        inside = np.isin(np.asarray(order), np.fromiter(kept, dtype=np.int64))
        around = np.concatenate([[0], np.cumsum(np.concatenate([inside, inside[: self.window]]))])
        counts = around[self.window : self.window + self.nodes] - around[: self.nodes]
        return bool(counts.min() > self.crowd)


@lru_cache(maxsize=64)
def graph_of(nodes: int, terms: Terms) -> Graph:
    """The sparsest graph that bears the colluding nodes, and as many lost ones as the terms do.

    Args:
        nodes: On the roster.
        terms: Of the round.

    Raises:
        ConfigError: The terms do not fit the roster.
    """
    terms.check_roster(nodes)
    lost = nodes - terms.least_nodes
    for window in range(1, (nodes - 1) // 2):
        crowd = _most(nodes, terms.colluding, window, bits=_COLLUSION_BITS)
        if window - _most(nodes, lost, window, bits=_LOSS_BITS) > crowd:
            return Graph(nodes=nodes, window=window, crowd=crowd, threshold=2 * crowd + 1)
    return Graph(nodes=nodes, window=0, crowd=0, threshold=terms.signatures(nodes) - 1)


def _most(nodes: int, marked: int, window: int, *, bits: int) -> int:
    """The most of some marked nodes that stand in any window of a uniform order.

    Returns:
        The least m with nodes x P[a window holds more than m] < 2^-bits, in whole numbers.
    """
    room = math.comb(nodes, window)
    above = 0
    for count in range(min(window, marked), -1, -1):
        above += math.comb(marked, count) * math.comb(nodes - marked, window - count)
        if (above * nodes) << bits >= room:
            return count
    return 0
