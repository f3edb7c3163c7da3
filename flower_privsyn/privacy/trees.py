"""Binary trees over the rounds: the correlated noise of DP-FTRL as published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_flag, check_whole
from flower_privsyn.privacy.factorisation import Draw, Factorisation, Recurrence, Vector
from flower_privsyn.privacy.participation import Participation, squared_sensitivity


@dataclass(frozen=True, kw_only=True)
class TreeAggregation(Factorisation):
    """Binary trees over the rounds: every complete node is the sum of its rounds plus noise.

    The running total after a round is read off the fewest nodes that make it up, one per binary one
    in the number of rounds. With ``honaker`` each node is first replaced by the best estimate from
    itself and the nodes below it, which has the same mean and little more than half the variance.

    After ``restart_every`` rounds a new tree begins, on top of the total of the tree before. With
    ``completion`` that total is read off one node: rounds without users are appended to the
    finished tree until their number is a power of two.

    Formal guarantee:
        Every node that is complete when its tree ends counts, whether the total uses it or not, as
        in the papers. The sensitivity is exact for cyclic participation and wherever the sets of
        rounds are few enough to try, else a bound. One participation in a tree of n rounds is in
        floor(log2 n) + 1 nodes, or ceil(log2 n) + 1 with completion.

    With one round per tree, as when everybody takes part in every round and each pass over the
    users is an epoch, this is independent noise: DP-FTRL is then DP-FedAvg.

    Args:
        rounds: Rounds T, at least 1.
        restart_every: Rounds per tree, at least 1; None for a single tree.
        honaker: Whether nodes are estimated from below.
        completion: Whether trees are completed before the next one begins. The last one is not.

    Raises:
        ConfigError: A value is out of range.

    References:
        Kairouz et al. 2021, "Practical and Private (Deep) Learning Without Sampling or Shuffling",
        algorithm 1 (DP-FTRL), and its appendices on tree aggregation, restarts and completion.
        Honaker 2015, "Efficient Use of Differentially Private Binary Trees", the estimate from
        below.
    """

    name: ClassVar[str] = "tree-aggregation"
    restart_every: int | None = None
    honaker: bool = False
    completion: bool = False

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, ge=1)
        if self.restart_every is not None:
            check_whole("restart_every", self.restart_every, ge=1)
        for key in ("honaker", "completion"):
            check_flag(key, getattr(self, key))

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

    def _leaves(self) -> list[int]:
        """The number of leaves of each tree, appended ones included."""
        if not self.completion:
            return list(self.trees)
        *finished, last = self.trees
        return [_next_power(leaves) for leaves in finished] + [last]

    def strategy_matrix(self) -> NDArray[np.float64]:
        """Return C, (nodes, rounds): which rounds each node sums up, level by level."""
        self._refuse_dense()
        blocks = []
        for first, rounds, leaves in self._layout():
            for level in range(leaves.bit_length()):
                nodes = np.zeros((leaves >> level, self.rounds))
                covered = np.arange(min(rounds, (leaves >> level) << level))
                nodes[covered >> level, first + covered] = 1.0
                blocks.append(nodes)
        return np.concatenate(blocks)

    def noise_matrix(self) -> NDArray[np.float64]:
        """Return D, (rounds, nodes)."""
        self._refuse_dense()
        rows = list(self._noise_rows())
        matrix = np.zeros((self.rounds, sum(_num_nodes(leaves) for leaves in self._leaves())))
        for row, (nodes, weights) in zip(matrix, rows, strict=True):
            np.add.at(row, nodes, weights)
        return matrix

    @cached_property
    def round_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise of each round."""
        deviations = np.empty(self.rounds)
        for number, (nodes, weights) in enumerate(self._noise_rows()):
            _, place = np.unique(nodes, return_inverse=True)
            deviations[number] = np.linalg.norm(np.bincount(place, weights))
        return deviations

    @cached_property
    def prefix_std(self) -> Vector:
        """(rounds,) the standard deviation of the noise in the sum of the rounds so far."""
        variances, below = [], 0.0
        *finished, _ = self._leaves()
        for rounds, leaves in zip(self.trees, [*finished, 0], strict=True):
            here = [
                math.fsum(self.variance(level) for level in _ones(number))
                for number in range(1, rounds + 1)
            ]
            variances += [below + variance for variance in here]
            below += math.fsum(self.variance(level) for level in _ones(leaves))
        return np.asarray(np.sqrt(variances))

    def variance(self, level: int) -> float:
        """Return the variance of the estimate of a node in units of that of a node's noise.

        Args:
            level: Of the node, 0 for the leaves.

        Returns:
            1; with ``honaker`` 1 / (2 (1 - 2^-(level + 1))), between 1 and 1/2.
        """
        return 1.0 / (2.0 - 0.5**level) if self.honaker else 1.0

    def _squared_sensitivity(self, participation: Participation) -> tuple[float, bool]:
        if not participation.cyclic and participation.most < self.rounds:
            strategy = self.strategy_matrix()
            return squared_sensitivity(strategy.T @ strategy, participation)
        # Every round is in one pattern, so that all patterns together are looked at round by round.
        pattern = np.arange(self.rounds) % participation.min_separation
        first, leaves = (
            np.repeat(values, self.trees)
            for values in (np.cumsum((0, *self.trees[:-1])), self._leaves())
        )
        squared = np.zeros(pattern.max() + 1)
        for level in range(int(leaves.max()).bit_length()):
            node = (np.arange(self.rounds) - first) >> level
            inside = node < leaves >> level
            # By its pattern and the round that the node begins with.
            keys = pattern * self.rounds + (node << level) + first
            keys, visits = np.unique(keys[inside], return_counts=True)
            squared += np.bincount(keys // self.rounds, visits**2, len(squared))
        return float(squared.max()), True

    def _layout(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first round, rounds, leaves) of every tree."""
        first = 0
        for rounds, leaves in zip(self.trees, self._leaves(), strict=True):
            yield first, rounds, leaves
            first += rounds

    def _noise_rows(self) -> Iterator[tuple[NDArray[np.int64], Vector]]:
        """Yield for every round the nodes whose noise is in it and their weights.

        A node may stand twice; its weights then add up.
        """
        base = 0
        carried: tuple[NDArray[np.int64], Vector] | None = None
        for _, rounds, leaves in self._layout():
            for number in range(1, rounds + 1):
                parts = list(self._steps(base, leaves, number - 1, number))
                if number == 1 and carried is not None:
                    parts.append(carried)
                yield _joined(parts)
            # What completing the tree changes in its total.
            carried = _joined(list(self._steps(base, leaves, rounds, leaves)))
            base += _num_nodes(leaves)

    def _steps(
        self, base: int, leaves: int, before: int, after: int
    ) -> Iterator[tuple[NDArray[np.int64], Vector]]:
        """Yield nodes and weights of the total after ``after`` rounds minus that before."""
        new, old = set(_total(after)), set(_total(before))
        for nodes_of, sign in ((new - old, 1.0), (old - new, -1.0)):
            for level, node in nodes_of:
                nodes, weights = self._estimate(base, leaves, level, node)
                yield nodes, sign * weights

    def _estimate(
        self, base: int, leaves: int, level: int, node: int
    ) -> tuple[NDArray[np.int64], Vector]:
        """Return the nodes and weights of the estimate of one node."""
        offsets = _level_offsets(leaves)
        if not self.honaker:
            return np.array([base + offsets[level] + node]), np.ones(1)
        nodes, weights = [], []
        for depth in range(level + 1):
            below = np.arange(node << depth, (node + 1) << depth)
            nodes.append(base + offsets[level - depth] + below)
            # Best linear estimate: halved from level to level, one in sum over a path.
            weights.append(np.full(len(below), 0.5**depth * self.variance(level)))
        return np.concatenate(nodes), np.concatenate(weights)

    def recurrence(self) -> Recurrence:
        """Return the noise from the first round on."""
        return _TreeRecurrence(self)

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"name": "tree-aggregation", "rounds": ..., "restart_every": ..., ...}``."""
        return {
            "name": self.name,
            "rounds": self.rounds,
            "restart_every": self.restart_every,
            "honaker": self.honaker,
            "completion": self.completion,
        }


class _TreeRecurrence(Recurrence):
    """Keeps the estimates of the nodes that make up the current total, one per level."""

    def __init__(self, tree: TreeAggregation) -> None:
        self._tree = tree
        self._round = 0
        self._estimates = np.zeros((0, 0))

    def next(self, draw: Draw) -> Vector:
        index, number = self._position()
        moved: Vector | None = None
        if number == 0 and index > 0 and self._tree.completion:
            moved = self._complete(draw)
        noise, level = self._ascend(draw, number)
        if not self._estimates.size:
            self._estimates = np.zeros((self._tree.buffers, len(noise)))
        # The total now holds this node in place of the lower ones.
        change: Vector = noise - self._estimates[:level].sum(axis=0)
        self._estimates[level] = noise
        self._round += 1
        if moved is not None:
            change += moved
        return change

    def _position(self) -> tuple[int, int]:
        """The current tree and the rounds that it has seen."""
        return divmod(self._round, max(self._tree.trees))

    def _ascend(self, draw: Draw, number: int) -> tuple[Vector, int]:
        """Return the estimate of the largest node that round ``number`` + 1 completes."""
        level = next(_ones(number + 1))
        estimate = draw()
        if self._tree.honaker:
            for below in range(level):
                estimate = self._merged(draw, self._estimates[below] + estimate, below + 1)
        # Without it, the smaller nodes that are completed too are in no total.
        return estimate, level

    def _merged(self, draw: Draw, children: Vector, level: int) -> Vector:
        """Return the estimate of a node from its own noise and its children's estimates."""
        # Weights inverse to the variances, 1 and twice that of a child.
        own = self._tree.variance(level)
        return own * draw() + (1.0 - own) * children

    def _complete(self, draw: Draw) -> Vector:
        """Return what completing the tree that has just ended changes in its total."""
        rounds = max(self._tree.trees)
        held = list(_ones(rounds))
        total = self._estimates[held].sum(axis=0)
        if len(held) == 1:
            return np.zeros_like(total)
        if not self._tree.honaker:
            return np.asarray(draw() - total)
        # The appended rounds are nobody's. A subtree of theirs that becomes a child is used once:
        # one draw of the variance of its estimate stands for it.
        estimate = self._estimates[held[0]]
        for level in range(held[0], rounds.bit_length()):
            if level in held[1:]:
                sibling = self._estimates[level]
            else:
                sibling = math.sqrt(self._tree.variance(level)) * draw()
            estimate = self._merged(draw, estimate + sibling, level + 1)
        return np.asarray(estimate - total)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"estimates": self._estimates, "round": np.array(self._round)}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._estimates = np.array(arrays["estimates"], dtype=np.float64)
        self._round = int(arrays["round"])


def _ones(number: int) -> Iterator[int]:
    """Yield the places of the binary ones of a number, lowest first."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number -= lowest


def _total(number: int) -> Iterator[tuple[int, int]]:
    """Yield (level, node) of the fewest nodes that make up the first ``number`` leaves."""
    for level in _ones(number):
        yield level, (number >> level) - 1
        number -= 1 << level


def _next_power(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _level_offsets(leaves: int) -> list[int]:
    """Where the nodes of each level start, leaves first."""
    sizes = [leaves >> level for level in range(leaves.bit_length())]
    return [0, *np.cumsum(sizes).tolist()]


def _num_nodes(leaves: int) -> int:
    return _level_offsets(leaves)[-1]


def _joined(
    parts: list[tuple[NDArray[np.int64], Vector]],
) -> tuple[NDArray[np.int64], Vector]:
    if not parts:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    nodes, weights = zip(*parts, strict=True)
    return np.concatenate(nodes), np.concatenate(weights)
