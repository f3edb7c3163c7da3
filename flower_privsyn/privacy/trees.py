"""Binary trees over the rounds: the correlated noise of DP-FTRL as published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.privacy.factorisation import Draw, Factorisation, Recurrence, Vector


@dataclass(frozen=True, kw_only=True)
class TreeAggregation(Factorisation):
    """Binary trees over the rounds: every complete node is the sum of its rounds plus noise.

    The running total after a round is read off the fewest nodes that make it up, one per binary one
    in the number of rounds. After ``restart_every`` rounds a new tree begins, on top of the total
    of the tree before.

    Formal guarantee:
        Every node that is complete when its tree ends counts, whether the total uses it or not, as
        in the paper. The sensitivity is exact. One participation in a tree of n rounds is in at
        most floor(log2 n) + 1 nodes.

    With one round per tree, as when everybody takes part in every round and each pass over the
    users is an epoch, this is independent noise: DP-FTRL is then DP-FedAvg.

    Args:
        rounds: Rounds T, at least 1.
        restart_every: Rounds per tree, at least 1; None for a single tree.

    Raises:
        ConfigError: A value is out of range.

    References:
        Kairouz et al. 2021, "Practical and Private (Deep) Learning Without Sampling or Shuffling",
        algorithm 1 (DP-FTRL), and its appendices on tree aggregation and restarts.
    """

    name: ClassVar[str] = "tree-aggregation"
    restart_every: int | None = None

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, ge=1)
        if self.restart_every is not None:
            check_whole("restart_every", self.restart_every, ge=1)

    @property
    def trees(self) -> tuple[int, ...]:
        """The number of rounds of each tree."""
        length = min(self.restart_every or self.rounds, self.rounds)
        whole, rest = divmod(self.rounds, length)
        return (length,) * whole + ((rest,) if rest else ())

    @property
    def buffers(self) -> int:
        """One vector per level of the largest tree."""
        return max(self.trees).bit_length()

    @cached_property
    def round_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise of each round."""
        # The node that a round completes, and those below it that leave the total.
        nodes = [1 + next(_ones(number)) for size in self.trees for number in range(1, size + 1)]
        return np.sqrt(np.array(nodes, dtype=np.float64))

    def _squared_sensitivity(self, min_separation: int) -> float:
        # Every round is in one pattern, so that all patterns together are looked at round by round.
        pattern = np.arange(self.rounds) % min_separation
        first, leaves = (
            np.repeat(values, self.trees)
            for values in (np.cumsum((0, *self.trees[:-1])), self.trees)
        )
        squared = np.zeros(pattern.max() + 1)
        for level in range(int(leaves.max()).bit_length()):
            node = (np.arange(self.rounds) - first) >> level
            inside = node < leaves >> level
            # By its pattern and the round that the node begins with.
            keys = pattern * self.rounds + (node << level) + first
            keys, visits = np.unique(keys[inside], return_counts=True)
            squared += np.bincount(keys // self.rounds, visits**2, len(squared))
        return float(squared.max())

    def recurrence(self) -> Recurrence:
        """Return the noise from the first round on."""
        return _TreeRecurrence(self)


class _TreeRecurrence(Recurrence):
    """Keeps the noise of the nodes that make up the current total, one per level."""

    def __init__(self, tree: TreeAggregation) -> None:
        self._tree = tree
        self.memory = {"nodes": np.zeros((0, 0)), "round": np.array(0)}

    def next(self, draw: Draw) -> Vector:
        number = int(self.memory["round"]) % max(self._tree.trees) + 1
        # The largest node that the round completes; the smaller ones are in no total.
        level = next(_ones(number))
        noise = draw()
        if not self.memory["nodes"].size:
            self.memory["nodes"] = np.zeros((self._tree.buffers, len(noise)))
        nodes = self.memory["nodes"]
        # The total now holds this node in place of the lower ones.
        change: Vector = noise - nodes[:level].sum(axis=0)
        nodes[level] = noise
        self.memory["round"] += 1
        return change


def _ones(number: int) -> Iterator[int]:
    """Yield the places of the binary ones of a number, lowest first."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number -= lowest
